"""Both ends of a fetch, without sockets. They turn messages into events.

The asking end keeps no copy of the data. The serving end limits how much of a snapshot may be sent,
and chooses the next piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpwa.data.checksum import checksum
from dpwa.data.codecs import Codec
from dpwa.data.layout import Layout, Piece
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.errors import ProtocolError
from dpwa.policy.health import Outcome
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.fields import News
from dpwa.wire.messages import (
    Chunk,
    Credit,
    Fetch,
    Message,
    NotReady,
    OtherModel,
    Refused,
    SharedMemoryName,
    SnapshotHeader,
    printable,
    unpack_layout,
)
from dpwa.wire.shards import WHOLE, Shard


@dataclass(frozen=True)
class Greeting:
    """The part of every request that describes the asking node: its name and its loss reports."""

    name: str
    news: News = ()


@dataclass(frozen=True)
class Ended:
    """Outcome of a fetch that has ended without a snapshot, with details in words."""

    outcome: Outcome
    detail: str = ""


# The meaning of an answer. The header announces `pieces`, a piece has arrived (still encoded), the
# snapshot can be mapped, or the fetch has ended without a snapshot.
Event = SnapshotHeader | Piece | SharedMemoryName | Ended


@dataclass
class FetchSession:
    """One fetch, from the first message to its end.

    `request_message` returns the message that opens it. `receive` accepts each answer and returns
    its meaning. After a piece, `credit` returns the message that allows the peer to send more.
    """

    request: int
    layout: Layout  # the layout that the snapshot must have
    greeting: Greeting  # describes the asking node
    codec: str = "none"
    can_map: bool = False  # whether the asking node can map shared memory instead
    shard: Shard = WHOLE
    version: int = 0  # minimum version; 0: the newest
    merged: int = 0  # a version that was merged, and is not fetched again; 0: none
    pieces: Sequence[Piece] = field(default=(), init=False)  # known after the header
    is_complete: bool = field(default=False, init=False)
    _next: int = field(default=0, init=False)
    _allowed: int = field(default=limits.CREDIT_CHUNKS, init=False)

    def request_message(self, budget_ms: int) -> Fetch:
        return Fetch(
            request=self.request,
            name=self.greeting.name,
            version=self.version,
            merged=self.merged,
            news=self.greeting.news,
            fingerprint=self.layout.fingerprint,
            can_map=self.can_map,
            codec=self.codec,
            chunk_bytes=self.shard.chunk_bytes,
            first=self.shard.first,
            count=self.shard.count,
            credit=limits.CREDIT_CHUNKS,
            budget_ms=budget_ms,
        )

    def credit(self) -> Credit | None:
        """Return the message that allows the peer to send more chunks, or `None` if none is due."""
        wanted = min(self._next + limits.CREDIT_CHUNKS, len(self.pieces))
        chunks = wanted - self._allowed
        if chunks < limits.GRANTED_CHUNKS and wanted < len(self.pieces):
            return None  # several chunks in one message, because every message wakes a thread
        self._allowed = wanted
        return Credit(request=self.request, chunks=chunks) if chunks > 0 else None

    def receive(self, message: Message, payload: Frame) -> Event:
        """Accept one answer. After a `ProtocolError`, the session must not be used any more."""
        match message:
            case SnapshotHeader():
                return self._announced(message)
            case Chunk():
                return self._arrived(message, payload)
            case SharedMemoryName() if self.can_map and not self.pieces:
                return message
            case NotReady() if self.merged:
                return Ended(Outcome.NOTHING_NEW)
            case _:
                return refused(message, payload, self.layout)

    def _announced(self, header: SnapshotHeader) -> SnapshotHeader:
        if self.pieces:
            raise ProtocolError("the peer has sent a second snapshot for one fetch")
        expected = self.layout.nbytes
        if expected is None and header.nbytes > limits.MAX_UNSTRUCTURED_BYTES:
            raise ProtocolError(f"a snapshot of {header.nbytes} bytes is too long")
        if expected is not None and header.nbytes != expected:
            raise ProtocolError(f"the snapshot has {header.nbytes} bytes, expected {expected}")
        if header.codec != self.codec:
            raise ProtocolError(f"got codec {printable(header.codec)!r}, expected {self.codec!r}")
        self.pieces = pieces_of(self.layout, header.nbytes, self.shard)
        if not self.pieces:
            raise ProtocolError("the snapshot is empty")
        return header

    def _arrived(self, chunk: Chunk, payload: Frame) -> Piece:
        if chunk.index != self._next or self._next >= len(self.pieces):
            raise ProtocolError(f"got chunk {chunk.index}, expected chunk {self._next}")
        if checksum(payload) != chunk.checksum:
            raise ProtocolError(f"chunk {chunk.index} was corrupted during transmission")
        piece = self.pieces[self._next]
        self._next += 1
        self.is_complete = self._next == len(self.pieces)
        return piece


def refused(message: Message, payload: Frame, layout: Layout) -> Ended:
    """Return the outcome of a request that a peer refused. `ProtocolError` for other answers."""
    match message:
        case NotReady():
            return Ended(Outcome.NOT_READY)
        case OtherModel():
            return Ended(Outcome.OTHER_MODEL, other_model(layout, payload))
        case Refused():
            return Ended(Outcome.MISBEHAVED, f"the peer refuses: {printable(message.reason)}")
        case _:
            raise ProtocolError(f"{message.type!r} is not an answer to this request")


def other_model(layout: Layout, described: Any) -> str:
    """Describe the first tensor that differs between `layout` and the peer's packed layout."""
    count, descriptions = unpack_layout(described)
    difference = (
        layout.difference(descriptions, count) or "none of the tensors that the peer describes"
    )
    return f"first difference: {difference}"


def pieces_of(layout: Layout, nbytes: int, shard: Shard) -> Sequence[Piece]:
    pieces = layout.pieces(nbytes, shard.chunk_bytes)
    return pieces[shard.first : shard.first + shard.count] if shard.count else pieces[shard.first :]


Outgoing = tuple[SnapshotHeader | Chunk, ByteArray | None]


class ServeSession:
    """Sends one snapshot to one peer in chunks. The peer grants credit for each chunk."""

    def __init__(self, fetch: Fetch, snapshot: Snapshot, codec: Codec, news: News = ()) -> None:
        self._news = news
        self.request = fetch.request
        self._snapshot = snapshot
        self._codec = codec
        self._has_usual_pieces = fetch.chunk_bytes == limits.CHUNK_BYTES
        shard = Shard(fetch.chunk_bytes, fetch.first, fetch.count)
        self._pieces = pieces_of(snapshot.layout, snapshot.data.nbytes, shard)
        self._credit = fetch.credit
        self._next = 0
        self._unsent: Outgoing | None = self._header(), None

    def grant(self, chunks: int) -> None:
        """Allow this session to send `chunks` more chunks, up to the maximum in flight."""
        self._credit = min(self._credit + chunks, limits.MAX_CREDIT_CHUNKS)

    def next_outgoing(self) -> Iterator[Outgoing]:
        """Yield the messages to send now: the header, and then chunks as the credit allows.

        A payload does not change while the lease lasts. A message counts as sent when the caller
        asks for the next one. If the caller leaves the loop, the message is yielded again.
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
        return self._unsent is None and self._next == len(self._pieces)

    def _chunk(self, index: int, piece: Piece) -> Outgoing:
        data = self._snapshot.data[piece.start : piece.stop]
        payload = self._codec.encode(data, piece.dtype)
        is_usual = self._has_usual_pieces and payload is data
        totals = self._snapshot.checksums if is_usual else {}
        if piece.start not in totals:
            totals[piece.start] = checksum(payload)
        return Chunk(request=self.request, index=index, checksum=totals[piece.start]), payload

    def _header(self) -> SnapshotHeader:
        snapshot = self._snapshot
        return SnapshotHeader(
            request=self.request,
            version=snapshot.version,
            clock=snapshot.progress.clock,
            loss=snapshot.progress.loss,
            trace=snapshot.progress.trace,
            is_finite=snapshot.is_finite,
            nbytes=snapshot.data.nbytes,
            codec=self._codec.name,
            news=self._news,
        )
