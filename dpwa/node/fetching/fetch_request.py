"""A fetch that the training thread has ordered, and what the TxThread has found for it so far."""

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
    """What is to be fetched, from whom, and on what terms.

    Attributes:
        layout: what the snapshot must be like.
        shard: which pieces of it.
        is_finite: tells whether values of a dtype are finite numbers; `None` to take any.
        terms: of the fetch.
        only: the one peer to ask; `None` if others will do.
        among: peers to choose from; `None` for all.
        version: of the snapshot; 0 for the newest.
        own_version: of this node's snapshot in a transaction.
        clock: of this node's training; a peer that is far behind will not do.
        merged: what was merged before, and is not wanted again; `None`: it is wanted all the same.
    """

    layout: Layout
    shard: Shard = WHOLE
    is_finite: IsFinite | None = None
    terms: Terms = Terms.PULL
    only: str | None = None
    among: Collection[str] | None = None
    version: int = 0
    own_version: int = 0
    clock: float = 0.0
    merged: MergedVersions | None = None

    def merged_of(self, peer: str) -> int:
        """Return the version of a peer's snapshot that is not wanted again; 0: any will do."""
        return 0 if self.merged is None else self.merged.of(peer, self.shard)


@dataclass(frozen=True)
class SettledDeal:
    """What was to be fetched belongs to a transaction that holds: its manager has it."""


@dataclass(frozen=True)
class Found:
    """Where a peer's snapshot is: received, in shared memory, or with the transaction manager."""

    peer: str
    source: IncomingSnapshot | PeerMemory | SettledDeal


class FetchRequest:
    """Fetch a snapshot from one peer before the deadline.

    The TxThread offers what it finds; the training thread takes it.

    Args:
        wanted: what to fetch.
        deadline: when nobody waits any more.
        runtime: of the node.

    Attributes:
        first: the peer to ask first.
        may_map: whether its shared memory will do.
        collects: the transaction of a peer that this fetch is for; `None` when it is the trainer's
            own.
    """

    def __init__(
        self,
        wanted: FetchTarget,
        deadline: Deadline,
        runtime: Runtime,
        *,
        collects: bytes | None = None,
    ) -> None:
        self.wanted = wanted
        self.deadline = deadline
        self.collects = collects
        self.first: str | None = wanted.only
        self.may_map = True
        self._runtime = runtime
        self._changed = runtime.condition()
        self._found: Found | None = None
        self._is_over = False

    @property
    def layout(self) -> Layout:
        """What the snapshot must be like."""
        return self.wanted.layout

    @property
    def is_finite(self) -> IsFinite | None:
        """Tells whether values of a dtype are finite numbers."""
        return self.wanted.is_finite

    def again(self, peer: str) -> FetchRequest:
        """Return an order for the same by the same deadline: a stream, of this peer if possible."""
        order = FetchRequest(self.wanted, self.deadline, self._runtime)
        order.first, order.may_map = peer, False
        return order

    def take(self, timeout_s: float) -> Found | None:
        """Wait for what is found; `None` when nothing will be, or not in time. Ends the order."""
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._is_over, timeout_s)
            self._is_over = True
            return self._found

    def offer(self, found: Found) -> bool:
        """Say where a snapshot is; return whether somebody still waits for it."""
        with self._changed:
            if self._is_over:
                return False
            self._found = found
            self._changed.notify_all()
            return True

    def end(self) -> None:
        """Say that nothing more will be found."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
