"""A fetch that the training thread asks for, and what the TxThread has found for it so far.

Pieces are decoded into one buffer as they come, which is merged in one pass when complete. What is
not complete in time is dropped, so there is nothing to take back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.codecs import Codec
from dpwa.data.delta_base import NOTHING, DeltaBase
from dpwa.data.layout import Layout, Piece
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.errors import PeerError
from dpwa.node.repeats import MergedVersions
from dpwa.policy.health import Outcome
from dpwa.runtime import Runtime
from dpwa.types import Frame, TrainingProgress
from dpwa.wire.fetching import Announced
from dpwa.wire.shards import WHOLE, Shard

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
        # Its publisher has looked, and a checksum says that it comes as it was.
        is_checked = header.is_finite is True and header.codec == "none"
        self._is_finite = None if is_checked else is_finite
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


@dataclass(frozen=True)
class FetchTarget:
    """What is to be fetched, from whom, and on what terms."""

    layout: Layout  # what the snapshot must be like
    shard: Shard = WHOLE  # which pieces of it
    is_finite: IsFinite | None = None  # tests the values of a dtype; `None`: unchecked
    terms: Terms = Terms.PULL
    only: str | None = None  # the one peer to ask; `None` if others will do
    among: Collection[str] | None = None  # peers to choose from; `None` for all
    version: int = 0  # of the snapshot; 0 for the newest
    own_version: int = 0  # of this node's snapshot in a transaction
    clock: float = 0.0  # of this node's training; a peer that is far behind will not do
    # already merged, and not wanted again; `None`: repeats are wanted
    merged: MergedVersions | None = None

    def merged_of(self, peer: str) -> int:
        """Return the version of a peer's snapshot that is not wanted again; 0: any will do."""
        return 0 if self.merged is None else self.merged.of(peer, self.shard)


@dataclass(frozen=True)
class SettledDeal:
    """The target belongs to a committed transaction: its manager has the snapshot."""


@dataclass(frozen=True)
class Found:
    """Where a peer's snapshot is: received, in shared memory, or with the transaction manager."""

    peer: str
    source: IncomingSnapshot | PeerMemory | SettledDeal


class FetchRequest:
    """Fetch a snapshot from one peer before the deadline.

    The TxThread offers what it finds; the training thread takes it.
    """

    def __init__(
        self,
        target: FetchTarget,
        deadline: Deadline,
        runtime: Runtime,
        *,
        # the transaction of a peer that this is for; `None`: the trainer's own
        collects: bytes | None = None,
    ) -> None:
        self.target = target
        self.layout, self.is_finite = target.layout, target.is_finite
        self.deadline = deadline
        self.collects = collects
        self.first: str | None = target.only  # the peer to ask first
        self.may_map = True  # its shared memory will do
        self._runtime = runtime
        self._changed = runtime.condition()
        self.found: Found | None = None
        self._is_over = False

    def again(self, peer: str) -> FetchRequest:
        """Return a request for a stream of the same, first of this peer, by the same deadline."""
        request = FetchRequest(self.target, self.deadline, self._runtime)
        request.first, request.may_map = peer, False
        return request

    def take(self, timeout_s: float) -> Found | None:
        """Wait for the result and end the request; `None` when nothing comes in time."""
        with self._changed:
            if self.found is None:
                self._changed.wait_for(lambda: self.found is not None or self._is_over, timeout_s)
            self._is_over = True
            return self.found

    def offer(self, found: Found) -> bool:
        """Offer a snapshot; return whether somebody still waits for it."""
        with self._changed:
            if self._is_over:
                return False
            self.found = found
            self._changed.notify_all()
            return True

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
