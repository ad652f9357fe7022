"""TransactionFetches: what a fetch for a transaction says to its manager and to the partner."""

from __future__ import annotations

from dpwa.algorithms import Terms
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import objection
from dpwa.node.context import NodeContext, most_nodes
from dpwa.node.fetching.fetch_request import FetchRequest, Found, SettledDeal
from dpwa.node.fetching.fetch_task import Attempt
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.wire.fetching import Ended
from dpwa.wire.proposing import Proposal, ProposalAgreed, ProposeSession, TransactionTerms
from dpwa.wire.transaction_messages import Prepared

_DECLINED = (Outcome.BUSY, Outcome.NOT_READY, Outcome.OTHER_ALGORITHM)


class TransactionFetches:
    """The transactions of a Fetcher, which asks whom it likes and decides what follows.

    A fetch is part of a transaction that this node has proposed, or it collects the snapshot of the
    peer for a transaction that the peer has proposed.

    Args:
        parts: of the node.
    """

    def __init__(self, parts: NodeContext) -> None:
        self._peer_table, self._transactions, self._clock = (
            parts.peer_table,
            parts.transactions,
            parts.clock,
        )
        self._most_units = UNIT * most_nodes(parts.config)
        self._greet = parts.greeting

    def propose(self, channel: PeerChannel, order: FetchRequest, request: int) -> Attempt | None:
        """Return an attempt that begins with a proposal; `None`: no transaction can be made now."""
        wanted = order.wanted
        expires = self._clock.now() + order.deadline.remaining_s()
        transaction = self._transactions.propose(channel.peer, wanted.own_version, expires)
        if transaction is None:
            return None
        terms: TransactionTerms = "exchange" if wanted.terms is Terms.EXCHANGE else "share"
        proposal = Proposal(transaction, terms, wanted.own_version, wanted.layout, self._greet())
        attempt = Attempt(channel, ProposeSession(request, proposal))
        attempt.transaction = transaction
        return attempt

    def agreed(self, transaction: bytes, agreed: ProposalAgreed) -> bool:
        """Take note that the peer has agreed; `False`: this node has agreed to another one.

        Raises:
            ProtocolError: the peer promises more mass than there is.
        """
        if agreed.units > max(self._most_units, UNIT * (len(self._peer_table.names) + 1)):
            raise ProtocolError(f"{agreed.units} units of mass: more than there are")
        return self._transactions.agreed(transaction, agreed.units)

    def pin(self, order: FetchRequest, attempt: Attempt, memory: PeerMemory) -> Lease | Ended:
        """Hold on to the promised snapshot in shared memory, or say why it will not do."""
        lease = memory.pin(order.layout, attempt.version)
        if lease is None or lease.snapshot.version != attempt.version:
            if lease is not None:
                lease.release()
            return Ended(Outcome.LOST, "its snapshot is gone")
        why_not = objection(lease.snapshot, order)
        if why_not is not None:
            lease.release()
            return why_not
        return lease

    def bring(self, order: FetchRequest, attempt: Attempt, lease: Lease) -> bool:
        """Hand over the peer's snapshot, which stays; return whether nothing more is awaited."""
        if order.collects is not None:
            if self._transactions.collected(order.collects, lease):
                self._say_prepared(attempt.channel, order.collects, is_there=True)
            return True
        if attempt.transaction is None or not self._transactions.complete(
            attempt.transaction, lease
        ):
            return False
        self.settle(order, attempt)
        return True

    def settle(self, order: FetchRequest, attempt: Attempt) -> None:
        """Tell the trainer that its transaction holds."""
        order.offer(Found(attempt.channel.peer, SettledDeal()))

    def prepared(self, transaction: bytes) -> bool | None:
        """Take note that the peer has this node's snapshot; see `TransactionManager.prepared`."""
        return self._transactions.prepared(transaction)

    def leave(self, attempt: Attempt | None, outcome: Outcome) -> None:
        """Do without the transaction of an attempt that has failed, if it is part of one."""
        if attempt is None or attempt.transaction is None:
            return
        if outcome in _DECLINED or attempt.asked_at is None:  # who was not asked need not be told
            self._transactions.refused(attempt.transaction)
        else:
            self._transactions.abort(attempt.transaction)

    def collect_failed(self, order: FetchRequest, channel: PeerChannel | None) -> None:
        """Let a peer know that its snapshot is not to be had; the transaction is off."""
        if (
            order.collects is not None
            and self._transactions.collect_failed(order.collects)
            and channel
        ):
            self._say_prepared(channel, order.collects, is_there=False)

    def _say_prepared(self, channel: PeerChannel, transaction: bytes, *, is_there: bool) -> None:
        message = Prepared(
            request=0, transaction=transaction, name=self._greet().name, is_there=is_there
        )
        channel.send(message)
