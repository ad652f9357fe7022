"""What the training thread wants of a peer, and what the TxThread has found for it so far."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Snapshot
from dpwa.node.arrival import Arrival, IsFinite
from dpwa.node.repeats import MergedVersions
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.runtime import Condition, Runtime
from dpwa.wire.fetching import Ended, pieces_of
from dpwa.wire.shards import WHOLE, Shard


@dataclass(eq=False)
class FetchRequest:
    """What is to be fetched, from whom, on what terms, and until when; and what was found.

    The TxThread offers what it finds; the training thread takes it.
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
    clock: float = 0.0  # of this node's training; a peer that is far behind will not do
    # already merged, and not wanted again; `None`: repeats are wanted
    merged: MergedVersions | None = None
    # the transaction of a peer that this is for; `None`: the trainer's own
    collects: bytes | None = None
    first: str | None = None  # the peer to ask first
    may_map: bool = True  # its shared memory will do
    peer: str = ""  # of which something was found
    # what it has sent, or where its snapshot lies
    found: Arrival | PeerMemory | None = None
    _is_over: bool = field(default=False, init=False)
    _changed: Condition = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.first or self.only
        self._changed = self.runtime.condition()

    def merged_of(self, peer: str) -> int:
        """Return the version of a peer's snapshot that is not wanted again; 0: any will do."""
        return 0 if self.merged is None else self.merged.of(peer, self.shard)

    def take(self, timeout_s: float) -> Arrival | PeerMemory | None:
        """Wait for what is found and end the request; `None` when nothing comes in time."""
        with self._changed:
            if not self._is_over:
                self._changed.wait(timeout_s)
            self._is_over = True
            return self.found

    def offer(self, peer: str, found: Arrival | PeerMemory) -> bool:
        """Offer what was found, which ends it; return whether somebody still waits for it."""
        with self._changed:
            if self._is_over:
                return False
            self.peer, self.found, self._is_over = peer, found, True
            self._changed.notify_all()
            return True

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def objection(self, snapshot: Snapshot) -> Ended | None:
        """Say why a snapshot must not be merged; `None`: it may be."""
        why_not = self._divergence(snapshot)
        if why_not:
            return Ended(Outcome.DIVERGED, why_not)
        if is_far_behind(snapshot.progress.clock, self.clock):
            return Ended(Outcome.BEHIND)
        return None

    def _divergence(self, snapshot: Snapshot) -> str:
        """Say what of it is not finite, and would spread to all nodes."""
        if snapshot.progress.loss == math.inf:
            return "its loss is not finite"
        is_finite, check = snapshot.is_finite, self.is_finite
        if check is None or is_finite:
            return ""
        if is_finite is None:
            data = snapshot.data
            pieces = pieces_of(self.layout, data.nbytes, self.shard)
            is_finite = all(check(data[p.start : p.stop], p.dtype, p.start) for p in pieces)
        return "" if is_finite else "its parameters or buffers are not finite"
