"""Requests for snapshots, the pieces that arrive in a stream, and snapshots ready to be merged.

Pieces are decoded into one buffer as they arrive, which is merged in one pass when it is complete.
A snapshot that is not complete in time is dropped, so no merge has to be undone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import numpy as np

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.codecs import Codec
from dpwa.data.layout import Layout, Piece
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.errors import PeerError
from dpwa.node.repeats import MergedVersions
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.runtime import Runtime
from dpwa.types import Frame, TrainingProgress
from dpwa.wire.fetching import Ended, pieces_of
from dpwa.wire.messages import SnapshotHeader
from dpwa.wire.shards import WHOLE, Shard

IsFinite = Callable[[ByteArray, str, int], bool]  # of a dtype, from a place in a snapshot on


@dataclass(frozen=True)
class FetchTerms:
    """The contents of a fetch, and whether they are checked."""

    fraction: float = 1.0  # of the parameters, a different part every time
    # tests the values of a dtype, on any thread; `None`: unchecked
    is_finite: IsFinite | None = None


WHOLE_SNAPSHOT = FetchTerms()


@dataclass(eq=False)
class Arrival:
    """A peer's snapshot, or the pieces of it that this round fetches, to be merged now.

    The code that has the bytes makes it. The round that merges it fills in the factor and the like.
    """

    peer: str
    nbytes: int  # of the whole snapshot
    progress: TrainingProgress  # clock and loss of the peer when it published
    version: int
    data: ByteArray  # valid until `release`; not to be written to
    start: int = 0  # where `data` begins in the snapshot
    # called by the node; what is received lies in the memory of the next fetch
    release: Callable[[], object] = lambda: None
    is_read_late: bool = False  # it was chosen at the end of the update, not at its beginning
    factor: float = 0.0  # weight to merge it with, from 0 to 1
    # this node's own snapshot of the round; `None` when it could not be published
    published: Snapshot | None = None
    staleness: float = 0.0  # updates that the peer's clock is behind this node's; negative: ahead
    ahead: float = 0.0  # share of an update that it is ahead of `published`, as it was read later
    waited_s: float = 0.0  # time that `update_wait` spent waiting for the snapshot
    takes_over: bool = False  # this node is far behind, and takes the parameters in full


Merge = Callable[[Arrival], float]  # returns the factor that it took


class BrokenFetchError(PeerError):
    """The received data must not be merged."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail or outcome.value)
        self.outcome = outcome
        self.detail = detail


class IncomingSnapshot:
    """One snapshot, or some of its pieces. It belongs to the TxThread until it is complete."""

    def __init__(
        self,
        header: SnapshotHeader,
        pieces: Sequence[Piece],
        codec: Codec,
        buffer: ByteArray,  # room for the whole snapshot, shape `(nbytes,)`
        is_finite: IsFinite | None = None,  # tests the values of a dtype; `None`: unchecked
    ) -> None:
        self._header, self._codec, self._buffer = header, codec, buffer
        self._start = pieces[0].start
        # clock and loss of the peer
        self._progress = TrainingProgress(clock=header.clock, loss=header.loss, trace=header.trace)
        # Its publisher has looked, and a checksum says that it comes as it was.
        is_checked = header.is_finite is True and header.codec == "none"
        self._is_finite = None if is_checked else is_finite
        self._data = buffer[self._start : pieces[-1].stop]  # complete once all pieces have come

    def arrival(self, peer: str) -> Arrival:
        """Return the data, once all pieces have arrived. They are valid until the next fetch."""
        nbytes, version = self._header.nbytes, self._header.version
        return Arrival(peer, nbytes, self._progress, version, self._data, self._start)

    def snapshot(self, layout: Layout) -> Snapshot:
        """Return all data as a snapshot of a layout, once all pieces have arrived."""
        return Snapshot(self._header.version, self._progress, layout, self._data, is_finite=True)

    def add_piece(self, piece: Piece, payload: Frame) -> None:
        """Raises `ProtocolError` if undecodable, `BrokenFetchError` if not finite."""
        place = self._buffer[piece.start : piece.stop]
        decoded = self._codec.decode(payload, piece.dtype, place)
        if not np.may_share_memory(decoded, place):
            np.copyto(place, decoded)
        # Afterwards: what was read is in the cache then, and nobody reads the buffer yet.
        check = self._is_finite
        if check is not None and not check(decoded, piece.dtype, piece.start):
            raise BrokenFetchError(Outcome.DIVERGED, "its parameters or buffers are not finite")


@dataclass(eq=False)
class FetchRequest:
    """A request for a snapshot, with its peer, terms and deadline, and its result.

    The TxThread offers the result, and the training thread takes it.
    """

    layout: Layout  # what the snapshot must be like
    deadline: Deadline
    runtime: Runtime
    shard: Shard = WHOLE  # which pieces of it
    is_finite: IsFinite | None = None  # tests the values of a dtype; `None`: unchecked
    terms: Terms = Terms.PULL
    only: str | None = None  # the one peer to ask; `None` if others will do
    among: Collection[str] | None = None  # peers to choose from; `None` for all
    version: int = 0  # of the snapshot; 0 for the newest
    own_version: int = 0  # of this node's snapshot in a transaction
    # of this node's training; a peer that is far behind will not do; 0: any will
    clock: float = 0.0
    # already merged, and not wanted again; `None`: repeats are wanted
    merged: MergedVersions | None = None
    # the transaction of a peer that this is for; `None`: the trainer's own
    collects: bytes | None = None
    first: str | None = None  # the peer to ask first
    may_map: bool = True  # its shared memory will do
    is_exact: bool = False  # all values as they are, whatever the codec
    peer: str = ""  # of which something was found
    # what it has sent, or where its snapshot lies
    found: Arrival | PeerMemory | None = None
    # Whoever acquires it ends the request. There is no lock that the training thread could hold
    # while a signal handler interrupts it and closes the node, which waits for the TxThread.
    _is_over: threading.Lock = field(default_factory=threading.Lock, init=False)
    _result: SimpleQueue[Arrival | PeerMemory | None] = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.first or self.only
        self._result = self.runtime.queue()

    def merged_of(self, peer: str) -> int:
        """Return the version of a peer's snapshot that is not wanted again, or 0."""
        return 0 if self.merged is None else self.merged.merged_version(peer, self.shard)

    def take_result(self, timeout_s: float) -> Arrival | PeerMemory | None:
        """Wait for the result and end the request. `None` if no result arrives in time."""
        try:
            return self._result.get(timeout=timeout_s)
        except Empty:
            # Whoever has ended it just now puts its result in at once.
            return None if self._is_over.acquire(blocking=False) else self._result.get()

    def offer(self, peer: str, found: Arrival | PeerMemory) -> bool:
        """Offer a result, which ends the request. Return whether its thread still waits."""
        if not self._is_over.acquire(blocking=False):
            return False
        self.peer, self.found = peer, found
        self._result.put(found)
        return True

    def end_fetch(self) -> None:
        if self._is_over.acquire(blocking=False):
            self._result.put(None)

    def objection(self, snapshot: Snapshot) -> Ended | None:
        """Return why a snapshot must not be merged, or `None` if it may be."""
        if snapshot.progress.loss == math.inf:
            return Ended(Outcome.DIVERGED, "its loss is not finite")
        if self.is_finite is not None and not snapshot.is_finite:
            why_not = self._divergence(snapshot, self.is_finite)
            if why_not:
                return Ended(Outcome.DIVERGED, why_not)
        if self.clock and is_far_behind(snapshot.progress.clock, self.clock):
            return Ended(Outcome.BEHIND)
        return None

    def _divergence(self, snapshot: Snapshot, check: IsFinite) -> str:
        """Describe the values of a snapshot that are not finite, and would spread to all nodes."""
        is_finite = snapshot.is_finite
        if is_finite is None:
            data = snapshot.data
            pieces = pieces_of(self.layout, data.nbytes, self.shard)
            is_finite = all(check(data[p.start : p.stop], p.dtype, p.start) for p in pieces)
        return "" if is_finite else "its parameters or buffers are not finite"
