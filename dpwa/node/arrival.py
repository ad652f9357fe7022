"""A fetch of a peer's snapshot: the request, the arriving pieces, and the result to be merged.

Pieces are decoded into one buffer as they arrive. The buffer is merged in one pass when it is
complete. A snapshot that is not complete in time is dropped, so no merge has to be undone.
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
from dpwa.node.merged_versions import MergedVersions
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.runtime import Runtime
from dpwa.types import Frame, TrainingProgress
from dpwa.wire.fetching import Ended, pieces_of
from dpwa.wire.messages import SnapshotHeader
from dpwa.wire.shards import WHOLE, Shard

IsFinite = Callable[[ByteArray, str, int], bool]  # arguments: bytes, dtype, offset in the snapshot


@dataclass(eq=False)
class Arrival:
    """All or part of a peer's snapshot, ready to be merged.

    The code that receives the bytes creates the arrival. The round sets `factor` and later fields.
    """

    peer: str
    nbytes: int  # of the whole snapshot
    progress: TrainingProgress  # clock and loss of the peer when it published
    version: int
    data: ByteArray  # read-only, and valid until `release`
    start: int = 0  # offset of `data` in the snapshot
    # called by the node; received data are overwritten by the next fetch
    release: Callable[[], object] = lambda: None
    is_read_late: bool = False  # whether it was chosen at the end of the update
    factor: float = 0.0  # weight of the merge, from 0 to 1
    # this node's own snapshot of the round; `None` if it could not be published
    published: Snapshot | None = None
    # the part that counts as merged and is not merged again; `None`: it may be merged again
    shard: Shard | None = None
    staleness: float = 0.0  # updates that the peer's clock is behind this node's; negative: ahead
    ahead: float = 0.0  # share of an update by which it is ahead of `published`, as it is later
    waited_s: float = 0.0  # time that `update_wait` spent waiting for the snapshot
    takes_over: bool = False  # whether this node is far behind, and copies the parameters in full


Merge = Callable[[Arrival], float]  # returns the factor that was used


class BrokenFetchError(PeerError):
    """Raised if the received data must not be merged."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail or outcome.value)
        self.outcome = outcome
        self.detail = detail


class IncomingSnapshot:
    """All or part of a peer's snapshot while arriving. The TxThread owns it until complete."""

    def __init__(
        self,
        header: SnapshotHeader,
        pieces: Sequence[Piece],
        codec: Codec,
        buffer: ByteArray,  # has room for the whole snapshot, shape `(nbytes,)`
        is_finite: IsFinite | None = None,  # checks the values of a dtype; `None`: unchecked
    ) -> None:
        self._header, self._codec, self._buffer = header, codec, buffer
        self._start = pieces[0].start
        # clock and loss of the peer
        self._progress = TrainingProgress(clock=header.clock, loss=header.loss, trace=header.trace)
        # The publisher has checked the values, and a checksum proves that they arrived unchanged.
        is_checked = header.is_finite is True and header.codec == "none"
        self._is_finite = None if is_checked else is_finite
        self._data = buffer[self._start : pieces[-1].stop]  # complete after the last piece

    def arrival(self, peer: str) -> Arrival:
        """Return the data after all pieces have arrived, valid until the next fetch begins."""
        nbytes, version = self._header.nbytes, self._header.version
        return Arrival(peer, nbytes, self._progress, version, self._data, self._start)

    def snapshot(self, layout: Layout) -> Snapshot:
        """Return all data as a snapshot of a layout, after all pieces have arrived."""
        return Snapshot(self._header.version, self._progress, layout, self._data, is_finite=True)

    def add_piece(self, piece: Piece, payload: Frame) -> None:
        """Decode a piece. Raises `ProtocolError`, or `BrokenFetchError` for non-finite values."""
        place = self._buffer[piece.start : piece.stop]
        decoded = self._codec.decode(payload, piece.dtype, place)
        if not np.may_share_memory(decoded, place):
            np.copyto(place, decoded)
        # After decoding, because the values are now in the cache, and no thread reads them yet.
        check = self._is_finite
        if check is not None and not check(decoded, piece.dtype, piece.start):
            raise BrokenFetchError(
                Outcome.DIVERGED, "the peer's parameters or buffers are not finite"
            )


@dataclass(eq=False)
class FetchRequest:
    """A request for a snapshot: the peer to ask, the kind of request, the deadline and the result.

    The TxThread offers the result, and the training thread waits for it.
    """

    layout: Layout  # the layout that the snapshot must have
    deadline: Deadline
    runtime: Runtime
    shard: Shard = WHOLE  # the pieces to fetch
    is_finite: IsFinite | None = None  # checks the values of a dtype; `None`: unchecked
    terms: Terms = Terms.PULL
    only: str | None = None  # the only peer that may be asked; `None`: any
    among: Collection[str] | None = None  # peers to choose from; `None`: all
    version: int = 0  # of the snapshot; 0: the newest
    # clock of this node; a peer that is far behind it is not merged; 0: any peer is
    clock: float = 0.0
    # versions that were merged, and are not merged again; `None`: repeats are allowed
    merged: MergedVersions | None = None
    may_map: bool = True  # whether to accept the name of the peer's shared memory
    is_exact: bool = False  # whether to use no codec, so that all values are exact
    first: str | None = field(init=False)  # the peer to ask first
    peer: str = ""  # the peer of the result
    # the received snapshot, or the memory in which it is
    found: Arrival | PeerMemory | None = None
    # The thread that acquires it ends the request. It is no lock that the training thread holds,
    # because a signal handler may interrupt that thread, close the node and wait for the TxThread.
    _is_over: threading.Lock = field(default_factory=threading.Lock, init=False)
    _result: SimpleQueue[Arrival | PeerMemory | None] = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.only
        self._result = self.runtime.queue()

    def begin_anew(self, peer: str) -> None:
        """Restart the request: ask this peer first, and accept no shared memory as the answer."""
        self.first, self.may_map, self.found = peer, False, None
        self._is_over, self._result = threading.Lock(), self.runtime.queue()

    def merged_of(self, peer: str) -> int:
        """Return the version of a peer's snapshot that must not be merged a second time, or 0."""
        return 0 if self.merged is None else self.merged.merged_version(peer, self.shard)

    def take_result(self, timeout_s: float) -> Arrival | PeerMemory | None:
        """Wait for the result and end the request. Return `None` if no result arrives in time."""
        try:
            return self._result.get(timeout=timeout_s)
        except Empty:
            # A thread that has just ended the request will put its result at once.
            return None if self._is_over.acquire(blocking=False) else self._result.get()

    def offer(self, peer: str, found: Arrival | PeerMemory) -> bool:
        """Set the result and end the request. Return `False` if the request had already ended."""
        if not self._is_over.acquire(blocking=False):
            return False
        self.peer, self.found = peer, found
        self._result.put(found)
        return True

    def end_fetch(self) -> None:
        if self._is_over.acquire(blocking=False):
            self._result.put(None)

    def objection(self, snapshot: Snapshot) -> Ended | None:
        """Return the reason why a snapshot must not be merged, or `None` if it may be merged."""
        if snapshot.progress.loss == math.inf:
            return Ended(Outcome.DIVERGED, "the peer's loss is not finite")
        if self.is_finite is not None and not snapshot.is_finite:
            why_not = self._divergence(snapshot, self.is_finite)
            if why_not:
                return Ended(Outcome.DIVERGED, why_not)
        if self.clock and is_far_behind(snapshot.progress.clock, self.clock):
            return Ended(Outcome.BEHIND)
        return None

    def _divergence(self, snapshot: Snapshot, check: IsFinite) -> str:
        """Return a message if a snapshot contains NaN or infinite values, or "" otherwise."""
        is_finite = snapshot.is_finite
        if is_finite is None:
            data = snapshot.data
            pieces = pieces_of(self.layout, data.nbytes, self.shard)
            is_finite = all(check(data[p.start : p.stop], p.dtype, p.start) for p in pieces)
        return "" if is_finite else "the peer's parameters or buffers are not finite"
