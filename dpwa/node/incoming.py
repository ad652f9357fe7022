"""A snapshot on its way from a peer: filled by the TxThread, read by the training thread.

As long as the trainer computes, pieces are decoded into a buffer. Once it waits, it is handed the
pieces as they come, to merge them while the next ones are on the wire.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np

from dpwa.clock import Deadline
from dpwa.data.codecs import Codec
from dpwa.data.delta_base import NOTHING, DeltaBase
from dpwa.data.layout import Piece
from dpwa.data.segments import ByteArray
from dpwa.errors import PeerError
from dpwa.policy.health import Outcome
from dpwa.types import Frame, TrainingProgress
from dpwa.wire.fetching import Announced

QUEUED_PIECES = 4  # that the trainer may be behind; more are kept in the buffer

Part = tuple[int, ByteArray]
IsFinite = Callable[[ByteArray, str], bool]


class BrokenFetchError(PeerError):
    """What had begun to arrive will never be complete."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail or outcome.value)
        self.outcome = outcome
        self.detail = detail


class Incoming:
    """One snapshot, or some of its pieces.

    Args:
        announced: what the peer said of it; at least one piece.
        codec: what the pieces are encoded with.
        buffer: room for the whole snapshot, shape `(nbytes,)`.
        held: what this node holds of this peer, for a codec that sends differences.
        is_finite: tells whether values of a dtype are finite numbers; `None` to take any.
        is_kept: whether all of it is to lie in the buffer in the end.

    Attributes:
        version: of the snapshot.
        standing: clock and loss of the peer.
        buffer: as given; what is not in use of it is free for the reader of `parts`.
    """

    def __init__(
        self,
        announced: Announced,
        codec: Codec,
        buffer: ByteArray,
        held: DeltaBase | None = None,
        is_finite: IsFinite | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        header, pieces = announced.header, announced.pieces
        self.version = header.version
        self.standing = TrainingProgress(clock=header.clock, loss=header.loss, trace=header.trace)
        self.buffer = buffer
        self._start, self._stop = pieces[0].start, pieces[-1].stop
        self._token = header.token
        self._codec = codec
        self._held = held
        self._is_finite = is_finite
        self._is_kept = is_kept
        self._room = buffer if held is None else held.data
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[Part | BrokenFetchError] = queue.SimpleQueue()
        self._buffered = self._start  # everything before is in the room
        self._is_read = False
        self._is_over = False
        if held is not None:
            held.token = NOTHING  # until all of it is there

    # The TxThread's side

    def add(self, piece: Piece, payload: Frame) -> None:
        """Take the next piece.

        Raises:
            ProtocolError: it cannot be decoded.
            BrokenFetchError: a value in it is not finite.
        """
        if self._is_over:
            return
        place = self._room[piece.start : piece.stop]
        decoded = self._codec.decode(payload, piece.dtype, place)
        if self._is_finite is not None and not self._is_finite(decoded, piece.dtype):
            raise BrokenFetchError(Outcome.DIVERGED, "its parameters are not finite")
        with self._lock:
            is_passed_on = self._is_read and self._queue.qsize() < QUEUED_PIECES
            if self._held is not None or self._is_kept or not is_passed_on:
                if not np.may_share_memory(decoded, place):
                    np.copyto(place, decoded)
                decoded = place
            if self._is_read:
                self._queue.put((piece.start, decoded))
            else:
                self._buffered = piece.stop
        if self._held is not None and piece.stop == self._stop:
            self._held.token = self._token  # it is now what the peer thinks it is

    def break_off(self, outcome: Outcome, detail: str = "") -> None:
        """Say that the rest will not come."""
        self._queue.put(BrokenFetchError(outcome, detail))

    # The training thread's side

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return self._buffered == self._stop

    def parts(self, deadline: Deadline) -> Iterator[Part]:
        """Yield `(start, bytes)` of consecutive parts: what is there, then what comes.

        A part is valid until the next one is asked for.

        Raises:
            BrokenFetchError: the rest does not come, or not in time.
        """
        with self._lock:
            self._is_read = True
            position = self._buffered
        if position > self._start:
            yield self._start, self._room[self._start : position]
        while position < self._stop:
            start, part = self._next(deadline)
            position = start + part.nbytes
            yield start, part

    def abandon(self) -> None:
        """Take no further piece."""
        self._is_over = True

    def _next(self, deadline: Deadline) -> Part:
        try:
            found = self._queue.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise BrokenFetchError(Outcome.TIMED_OUT) from None
        if isinstance(found, BrokenFetchError):
            raise found
        return found
