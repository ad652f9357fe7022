"""The rounds of a node whose algorithm has transactions, on the training thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot, SnapshotCopy
from dpwa.node.arrival import Arrival, IsFinite, Merge
from dpwa.node.context import NodeContext
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.training_figures import Activity
from dpwa.node.transactions.manager import Settled, TransactionManager


class TransactionRounds(GossipRounds):
    """Rounds that also merge the transactions of this node and its peers."""

    def __init__(
        self,
        context: NodeContext,
        tx: TxThread,
        check_open: Callable[[], None],
        manager: TransactionManager,
    ) -> None:
        super().__init__(context, tx, check_open)
        self._transactions = manager

    def guard(self, is_finite: IsFinite | None) -> None:
        super().guard(is_finite)
        self._transactions.is_finite = is_finite

    def publish_snapshot(
        self, layout: Layout, nbytes: int, write: Callable[[ByteArray], SnapshotCopy]
    ) -> bool:
        is_published = super().publish_snapshot(layout, nbytes, write)
        if self.published is not None:
            self._transactions.published(self.published.version)
        return is_published

    def wait_and_merge(self, loss: float | None, merge: Merge) -> Arrival | None:
        """Wait for the fetch and merge, then merge the snapshots of committed transactions."""
        published = self.published
        arrival = super().wait_and_merge(loss, merge)
        with self.figures.doing(Activity.MERGE):
            while (settled := self._transactions.next_settled()) is not None:
                self._context.pool.settle()
                # What was merged before has moved this node away from what it has published.
                own = published if arrival is None else None
                arrival = self._merge_settled(settled, own, merge) or arrival
        return arrival

    def skip(self) -> None:
        super().skip()
        while (settled := self._transactions.next_settled()) is not None:
            self._transactions.factor(settled)  # its mass counts all the same
            settled.release()

    def _merge_settled(
        self, settled: Settled, published: Snapshot | None, merge: Merge
    ) -> Arrival | None:
        """Merge the snapshot of a transaction, unless the parameters were replaced meanwhile."""
        factor, theirs = self._transactions.factor(settled), settled.theirs.snapshot
        is_other_model = theirs.layout.fingerprint != self.merger.fingerprint
        if factor == 0.0 or is_other_model or self._is_of_before(settled):
            settled.release()
            return None
        arrival = Arrival(
            settled.peer,
            theirs.data.nbytes,
            theirs.progress,
            theirs.version,
            theirs.data,
            release=settled.release,
            factor=factor,
            published=published if settled.own is None else settled.own.snapshot,
        )
        # Both ends merge, whatever it says of its clock.
        arrival.progress = replace(theirs.progress, clock=self.merger.doubt(arrival)[1])
        arrival.staleness = self.progress.clock - arrival.progress.clock
        return self.merger.merge(arrival, merge)

    def _is_of_before(self, settled: Settled) -> bool:
        """Tell whether this node has replaced the parameters that it put into a transaction."""
        mine = settled.own if settled.returned is None else settled.theirs
        return mine is not None and mine.snapshot.version <= self.merger.taken_over_at
