"""The serving side of a fetch: how much of a snapshot may be sent, and which bytes come next."""

from __future__ import annotations

from collections.abc import Iterator

from dpwa.data.snapshot import ByteArray, Snapshot
from dpwa.wire import limits
from dpwa.wire.messages import Chunk, Fetch, SnapshotHeader


class ServeSession:
    """One snapshot on its way to one peer, within the credit that the peer grants."""

    def __init__(self, fetch: Fetch, snapshot: Snapshot) -> None:
        self.request = fetch.request
        self._snapshot = snapshot
        self._credit = fetch.credit
        self._next_index = 0
        self._announced = False

    def grant(self, chunks: int) -> None:
        """Add credit, up to the most that is ever in flight."""
        self._credit = min(self._credit + chunks, limits.MAX_CREDIT_CHUNKS)

    def due(self) -> Iterator[tuple[SnapshotHeader | Chunk, ByteArray | None]]:
        """Yield what may be sent now: the header, then the chunks that the credit allows.

        Each comes with its payload, and counts as sent when the next one is asked for: to leave the
        loop is to have it yielded again another time.
        """
        if not self._announced:
            yield self._header(), None
            self._announced = True
        while self._credit > 0 and not self.finished:
            start = self._next_index * limits.CHUNK_BYTES
            data = self._snapshot.data[start : start + limits.CHUNK_BYTES]
            yield Chunk(request=self.request, index=self._next_index), data
            self._next_index += 1
            self._credit -= 1

    @property
    def finished(self) -> bool:
        """Tell whether everything was sent."""
        return (
            self._announced and self._next_index * limits.CHUNK_BYTES >= self._snapshot.data.nbytes
        )

    def _header(self) -> SnapshotHeader:
        """Return the message that announces the snapshot."""
        return SnapshotHeader(
            request=self.request,
            version=self._snapshot.version,
            clock=self._snapshot.standing.clock,
            loss=self._snapshot.standing.loss,
            nbytes=self._snapshot.data.nbytes,
            chunk_bytes=limits.CHUNK_BYTES,
        )
