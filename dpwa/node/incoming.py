"""A snapshot on its way from a peer: filled by the TxThread, read by the training thread.

As long as the trainer computes, pieces are decoded into a buffer. Once it waits, it is handed the
pieces as they come, to merge them while the next ones are on the wire.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from dpwa.clock import Deadline
from dpwa.data.codecs import Codec
from dpwa.data.held import NOTHING, Held
from dpwa.data.layout import Layout, Piece
from dpwa.data.segments import ByteArray
from dpwa.errors import PeerError, ProtocolError
from dpwa.policy.health import Outcome
from dpwa.types import Frame, Standing
from dpwa.wire.messages import SnapshotHeader

QUEUED_PIECES = 8  # that the trainer may be behind; more are decoded into the buffer

Part = tuple[int, ByteArray]


class BrokenFetchError(PeerError):
    """What had begun to arrive will never be complete."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail or outcome.value)
        self.outcome = outcome
        self.detail = detail


class Incoming:
    """One snapshot, or some of its pieces.

    Args:
        layout: what the bytes mean.
        header: what the peer said of it.
        pieces: what will come, in order; at least one.
        codec: what they are encoded with.
        buffer: room for the whole snapshot, shape `(nbytes,)`.
        held: what this node holds of this peer, for a codec that sends differences.

    Attributes:
        standing: clock and loss of the peer.
    """

    def __init__(
        self,
        layout: Layout,
        header: SnapshotHeader,
        pieces: Sequence[Piece],
        codec: Codec,
        buffer: ByteArray,
        held: Held | None = None,
    ) -> None:
        self.layout = layout
        self.version = header.version
        self.standing = Standing(clock=header.clock, loss=header.loss)
        self.is_finite = header.is_finite
        self.start, self.stop = pieces[0].start, pieces[-1].stop
        self._token = header.token
        self._codec = codec
        self._held = held
        self._room = buffer if held is None else held.data
        self.buffer = buffer
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[tuple[Piece, Frame | None]] = queue.SimpleQueue()
        self._buffered = self.start  # everything before is in the buffer
        self._is_read = False
        self._is_over = False
        self._fault: BrokenFetchError | None = None
        if held is not None:
            held.token = NOTHING  # until all of it is there

    # The TxThread's side

    def add(self, piece: Piece, payload: Frame) -> None:
        """Take the next piece.

        Raises:
            ProtocolError: it cannot be decoded.
        """
        with self._lock:
            if self._is_over:
                return
            if self._is_read and self._queue.qsize() < QUEUED_PIECES:
                self._queue.put((piece, payload))
                return
            self._store(piece, self._codec.decode(payload, piece.dtype, self._place(piece)))
            if self._is_read:
                self._queue.put((piece, None))
            else:
                self._buffered = piece.stop
            if piece.stop == self.stop:
                self._agree()

    def break_off(self, outcome: Outcome, detail: str = "") -> None:
        """Say that the rest will not come."""
        with self._lock:
            self._fault = BrokenFetchError(outcome, detail)
            self._queue.put((_NO_PIECE, None))

    # The training thread's side

    @property
    def is_complete(self) -> bool:
        """Whether all of it is in the buffer."""
        return self._buffered == self.stop

    @property
    def room(self) -> ByteArray:
        """Where the buffered pieces are, shape `(nbytes,)`."""
        return self._room

    def parts(self, deadline: Deadline) -> Iterator[Part]:
        """Yield `(start, bytes)` of consecutive parts: what is buffered, then what comes.

        A part is valid until the next one is asked for.

        Raises:
            BrokenFetchError: the rest does not come, or not in time.
        """
        with self._lock:
            self._is_read = True
            position = self._buffered
        if position > self.start:
            yield self.start, self._room[self.start : position]
        while position < self.stop:
            piece, payload = self._next(deadline)
            yield piece.start, self._place(piece) if payload is None else self._read(piece, payload)
            position = piece.stop

    def abandon(self) -> None:
        """Take no further piece."""
        with self._lock:
            self._is_over = True

    def _next(self, deadline: Deadline) -> tuple[Piece, Frame | None]:
        try:
            found = self._queue.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise BrokenFetchError(Outcome.TIMED_OUT) from None
        if found[0] is _NO_PIECE:
            raise self._fault or BrokenFetchError(Outcome.LOST)
        return found

    def _read(self, piece: Piece, payload: Frame) -> ByteArray:
        try:
            decoded = self._codec.decode(payload, piece.dtype, self._place(piece))
        except ProtocolError as error:
            raise BrokenFetchError(Outcome.MISBEHAVED, str(error)) from None
        if self._held is not None:
            self._store(piece, decoded)
            if piece.stop == self.stop:
                self._agree()
        return decoded

    def _place(self, piece: Piece) -> ByteArray:
        return self._room[piece.start : piece.stop]

    def _store(self, piece: Piece, decoded: ByteArray) -> None:
        place = self._place(piece)
        if not np.may_share_memory(decoded, place):
            np.copyto(place, decoded)

    def _agree(self) -> None:
        """What is held is now what the peer thinks it is."""
        if self._held is not None:
            self._held.token = self._token


_NO_PIECE = Piece(0, 0, "")
