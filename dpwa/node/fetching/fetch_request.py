"""FetchRequest: what the training thread asks for, and what the TxThread has found for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.node.fetching.incoming import IncomingSnapshot, IsFinite
from dpwa.node.repeats import MergedVersions
from dpwa.runtime import Runtime
from dpwa.wire.shards import WHOLE, Shard


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
        self.deadline = deadline
        self.collects = collects
        self.first: str | None = target.only  # the peer to ask first
        self.may_map = True  # its shared memory will do
        self._runtime = runtime
        self._changed = runtime.condition()
        self._found: Found | None = None
        self._is_over = False

    @property
    def layout(self) -> Layout:
        return self.target.layout

    @property
    def is_finite(self) -> IsFinite | None:
        return self.target.is_finite

    def again(self, peer: str) -> FetchRequest:
        """Return a request for a stream of the same, first of this peer, by the same deadline."""
        request = FetchRequest(self.target, self.deadline, self._runtime)
        request.first, request.may_map = peer, False
        return request

    def take(self, timeout_s: float) -> Found | None:
        """Wait for the result and end the request; `None` when nothing comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._is_over, timeout_s)
            self._is_over = True
            return self._found

    def offer(self, found: Found) -> bool:
        """Offer a snapshot; return whether somebody still waits for it."""
        with self._changed:
            if self._is_over:
                return False
            self._found = found
            self._changed.notify_all()
            return True

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
