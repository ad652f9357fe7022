"""Sources: what a fetch has found, opened to be merged from."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Snapshot
from dpwa.node.arrival import Source, mapped, objection, streamed
from dpwa.node.context import NodeContext
from dpwa.node.fetching.fetch_request import FetchRequest, Found
from dpwa.node.fetching.incoming import IncomingSnapshot
from dpwa.node.serving.snapshot_service import MOST_ROUNDS_BEHIND
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Ended

GRACE_S = 0.02  # what is granted to the TxThread past the deadline to report its result
POLL_S = 0.001


class Sources:
    """Begins fetches and opens what they have found; belongs to the training thread.

    Args:
        context: of the node.
        order: hands an order to the TxThread.
    """

    def __init__(self, context: NodeContext, order: Callable[[FetchRequest], None]) -> None:
        self._peer_table = context.peer_table
        self._order = order
        self._clock = context.clock
        self._sleep = context.runtime.sleep
        self._rng = context.rng("peer")
        self._read: PeerMemory | None = None  # in which this thread has pinned something

    def draw(
        self, barred: Collection[str] = (), among: Collection[str] | None = None
    ) -> str | None:
        """Have flow control draw a peer, out of all or `among` some, but none that is barred."""
        return self._peer_table.choose(self._rng, barred, among)

    def pull(self, order: FetchRequest) -> None:
        """Begin with a fetch that needs no peer's consent."""
        if order.first is None:
            order.first = self.draw(among=order.wanted.among)
        memory = None if order.first is None else self._peer_table.memory_of(order.first)
        if order.first is not None and memory is not None:
            order.offer(Found(order.first, memory))  # it lies there: nobody needs to be asked
        else:
            self._order(order)

    def older(self, peer: str, order: FetchRequest, version: int) -> Source | None:
        """Return a version that a peer has published before its newest, if it lies there still."""
        memory = self._peer_table.memory_of(peer)
        if memory is None or version == order.wanted.merged_of(peer):
            return None
        snapshot = self._pin(memory, order.layout, version)
        if snapshot is None or objection(snapshot, order) is not None:
            self.let_go()
            return None
        return mapped(peer, snapshot, order, self.let_go)

    def wait(self, order: FetchRequest) -> Source | None:
        """Wait for what an order finds; `None` when nothing is, or it must not be merged."""
        found = order.take(order.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._open(found, order)

    def _open(self, found: Found, order: FetchRequest, *, may_ask: bool = True) -> Source | None:
        if isinstance(found.source, IncomingSnapshot):
            return streamed(found.peer, found.source)
        if not isinstance(found.source, PeerMemory):
            return None  # the transaction manager has it
        snapshot = self._pinned(found.source, order)
        if snapshot is None:
            return self._missing(found.peer, order, may_ask=may_ask)
        is_known = snapshot.version == order.wanted.merged_of(found.peer)
        if not is_known:
            self._peer_table.told_clock(found.peer, snapshot.standing.clock)
        why_not = Ended(Outcome.NOTHING_NEW) if is_known else objection(snapshot, order)
        if why_not is not None:
            self.let_go()
            self._peer_table.record(found.peer, why_not.outcome, why_not.detail)
            return None
        return mapped(found.peer, snapshot, order, self.let_go)

    def let_go(self) -> None:
        """Give back what is pinned, if anything; also what an interrupted call has left."""
        if self._read is not None:
            self._read.unpin(self)
            self._read = None

    def _pin(self, memory: PeerMemory, layout: Layout, version: int = 0) -> Snapshot | None:
        if self._read is not memory:
            self.let_go()
            self._read = memory
        lease = memory.pin(layout, version, self)
        return None if lease is None else lease.snapshot

    def _pinned(self, memory: PeerMemory, order: FetchRequest) -> Snapshot | None:
        """Pin the snapshot that is wanted; wait for one that the peer has yet to publish."""
        wanted = order.wanted
        snapshot = self._pin(memory, wanted.layout, wanted.version)
        while snapshot is None and wanted.version and not order.deadline.expired():
            if not memory.is_alive(self._clock.now()):
                break
            snapshot = self._pin(memory, wanted.layout)
            if snapshot is None or wanted.version - snapshot.version > MOST_ROUNDS_BEHIND:
                break  # it is far behind, as after a restart: that one will do
            self.let_go()
            self._sleep(POLL_S)
            snapshot = self._pin(memory, wanted.layout, wanted.version)
        return snapshot

    def _missing(self, peer: str, order: FetchRequest, *, may_ask: bool) -> Source | None:
        """Ask a peer in whose memory there is nothing for this node any more: it tells why."""
        if order.wanted.version and order.deadline.expired():
            self._peer_table.record(peer, Outcome.TIMED_OUT, "it is rounds behind")
            return None
        if not may_ask:
            self._peer_table.record(peer, Outcome.LOST, "its shared memory cannot be mapped")
            return None
        self._peer_table.share(peer, None)
        again = order.again(peer)
        self._order(again)
        found = again.take(again.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._open(found, again, may_ask=False)
