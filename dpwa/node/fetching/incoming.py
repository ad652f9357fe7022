"""A snapshot on its way from a peer: its pieces are decoded into one buffer as they come.

It is merged in one pass when complete. What is not complete in time is dropped, so there is nothing
to take back.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpwa.data.codecs import Codec
from dpwa.data.delta_base import NOTHING, DeltaBase
from dpwa.data.layout import Layout, Piece
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.errors import PeerError
from dpwa.policy.health import Outcome
from dpwa.types import Frame, TrainingProgress
from dpwa.wire.fetching import Announced

IsFinite = Callable[[ByteArray, str, int], bool]  # of a dtype, from a place in a snapshot on


class BrokenFetchError(PeerError):
    """What arrives must not be merged."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail or outcome.value)
        self.outcome = outcome
        self.detail = detail


class IncomingSnapshot:
    """One snapshot, or some of its pieces; belongs to the TxThread until it is complete."""

    def __init__(
        self,
        announced: Announced,
        codec: Codec,
        buffer: ByteArray,  # room for the whole snapshot, shape `(nbytes,)`
        # what this node holds of this peer: codecs that send differences decode into it
        held: DeltaBase | None = None,
        is_finite: IsFinite | None = None,  # tests the values of a dtype; `None`: unchecked
    ) -> None:
        header, pieces = announced.header, announced.pieces
        self.version = header.version
        # clock and loss of the peer
        self.progress = TrainingProgress(clock=header.clock, loss=header.loss, trace=header.trace)
        self.nbytes, self.start, self._stop = header.nbytes, pieces[0].start, pieces[-1].stop
        self._token = header.token
        self._codec = codec
        self._held = held
        self._is_finite = is_finite
        self._buffer = buffer if held is None else held.data
        self.data = self._buffer[self.start : self._stop]  # complete once all pieces have come
        if held is not None:
            held.token = NOTHING  # until all of it is there

    def snapshot(self, layout: Layout) -> Snapshot:
        """Return it as a snapshot of a layout, valid until the next fetch."""
        return Snapshot(self.version, self.progress, layout, self.data, is_finite=True)

    def add(self, piece: Piece, payload: Frame) -> None:
        """Raises `ProtocolError` if undecodable, `BrokenFetchError` if not finite."""
        place = self._buffer[piece.start : piece.stop]
        decoded = self._codec.decode(payload, piece.dtype, place)
        if not np.may_share_memory(decoded, place):
            np.copyto(place, decoded)
        # Afterwards: what was read is in the cache then, and nobody reads the buffer yet.
        check = self._is_finite
        if check is not None and not check(decoded, piece.dtype, piece.start):
            raise BrokenFetchError(Outcome.DIVERGED, "its parameters or buffers are not finite")
        if self._held is not None and piece.stop == self._stop:
            self._held.token = self._token  # it is now what the peer thinks it is
