"""The serving side of a fetch: how much of a snapshot may be sent, and which piece comes next."""

from __future__ import annotations

from collections.abc import Iterator

from dpwa.data.checksum import checksum
from dpwa.data.codecs import Codec
from dpwa.data.delta_base import DeltaBase
from dpwa.data.layout import Piece
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.wire import limits
from dpwa.wire.fetching import pieces_of
from dpwa.wire.fields import News
from dpwa.wire.messages import Chunk, Fetch, SnapshotHeader
from dpwa.wire.shards import Shard

Outgoing = tuple[SnapshotHeader | Chunk, ByteArray | None]


class ServeSession:
    """One snapshot on its way to one peer, within the credit that the peer grants.

    Args:
        fetch: what the peer asked for.
        snapshot: what it gets.
        codec: how each piece is encoded.
        held: what the peer will hold afterwards, to be brought up to date on the way; `None` for a
            codec that needs nothing of the kind.
        news: to be passed on with the snapshot.
    """

    def __init__(
        self,
        fetch: Fetch,
        snapshot: Snapshot,
        codec: Codec,
        held: DeltaBase | None = None,
        news: News = (),
    ) -> None:
        self._news = news
        self.request = fetch.request
        self._snapshot = snapshot
        self._codec = codec
        self._held = held
        shard = Shard(fetch.chunk_bytes, fetch.first, fetch.count)
        self._pieces = pieces_of(snapshot.layout, snapshot.data.nbytes, shard)
        self._credit = fetch.credit
        self._next = 0
        self._unsent: Outgoing | None = self._header(), None

    def grant(self, chunks: int) -> None:
        """Add credit, up to the most that is ever in flight."""
        self._credit = min(self._credit + chunks, limits.MAX_CREDIT_CHUNKS)

    def due(self) -> Iterator[Outgoing]:
        """Yield what may be sent now: the header, then the chunks that the credit allows.

        Each comes with its payload, which stays as it is while the lease lasts, and counts as sent
        when the next one is asked for: to leave the loop is to have it yielded again another time.
        """
        while True:
            if self._unsent is None:
                if self._credit == 0 or self._next == len(self._pieces):
                    return
                self._unsent = self._chunk(self._next, self._pieces[self._next])
                self._next += 1
                self._credit -= 1
            yield self._unsent
            self._unsent = None

    @property
    def finished(self) -> bool:
        """Tell whether everything was sent."""
        return self._unsent is None and self._next == len(self._pieces)

    def _chunk(self, index: int, piece: Piece) -> Outgoing:
        """Encode a piece, once: a codec that sends differences changes what is held."""
        data = self._snapshot.data[piece.start : piece.stop]
        held = None if self._held is None else self._held.data[piece.start : piece.stop]
        payload = self._codec.encode(data, piece.dtype, held)
        if held is not None and not self._codec.is_delta:
            held[:] = data
        return Chunk(request=self.request, index=index, checksum=checksum(payload)), payload

    def _header(self) -> SnapshotHeader:
        """Return the message that announces the snapshot."""
        snapshot = self._snapshot
        return SnapshotHeader(
            request=self.request,
            version=snapshot.version,
            clock=snapshot.standing.clock,
            loss=snapshot.standing.loss,
            trace=snapshot.standing.trace,
            is_finite=snapshot.is_finite,
            nbytes=snapshot.data.nbytes,
            codec=self._codec.name,
            token=0 if self._held is None else self._held.token,
            news=self._news,
        )
