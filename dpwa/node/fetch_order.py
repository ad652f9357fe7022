"""A fetch that the training thread has ordered, and what the TxThread has found for it so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.node.incoming import Incoming, IsFinite
from dpwa.wire.shards import Shard


@dataclass(frozen=True)
class Found:
    """Where a peer's snapshot is: on its way, or in shared memory."""

    peer: str
    source: Incoming | PeerMemory


class FetchOrder:
    """Fetch a snapshot from one peer before the deadline.

    The TxThread offers what it finds, and may withdraw it for that of another peer, until the
    training thread has taken it.

    Args:
        layout: what the snapshot must be like.
        shard: which pieces of it.
        deadline: when nobody waits any more.
        is_finite: tells whether values of a dtype are finite numbers; `None` to take any.

    Attributes:
        first: the peer to ask first.
        may_map: whether its shared memory will do.
    """

    def __init__(
        self,
        layout: Layout,
        shard: Shard,
        deadline: Deadline,
        is_finite: IsFinite | None = None,
    ) -> None:
        self.first: str | None = None
        self.may_map = True
        self.is_finite = is_finite
        self.layout = layout
        self.shard = shard
        self.deadline = deadline
        self._changed = threading.Condition()
        self._found: Found | None = None
        self._is_taken = False
        self._is_over = False

    def again(self, peer: str) -> FetchOrder:
        """Return an order for the same by the same deadline: a stream, of this peer if possible."""
        order = FetchOrder(self.layout, self.shard, self.deadline, self.is_finite)
        order.first, order.may_map = peer, False
        return order

    def take(self, timeout_s: float) -> Found | None:
        """Wait for what is found; `None` when nothing will be, or not in time. Ends the order."""
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._is_over, timeout_s)
            self._is_taken = True
            return self._found

    def offer(self, found: Found) -> None:
        """Say where a snapshot is."""
        with self._changed:
            self._found = found
            self._changed.notify_all()

    def withdraw(self) -> bool:
        """Take an offer back; return whether that was possible."""
        with self._changed:
            if self._is_taken:
                return False
            self._found = None
            return True

    def end(self) -> None:
        """Say that nothing more will be found."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
