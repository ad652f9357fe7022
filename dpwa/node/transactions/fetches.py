"""The transactions of a Fetcher, on the TxThread: proposals, collected snapshots, decisions."""

from __future__ import annotations

from dpwa.algorithms import Terms
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import FetchRequest
from dpwa.node.context import NodeContext, most_nodes
from dpwa.node.fetching.fetcher import Attempt, Fetcher
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.node.transactions.manager import TransactionManager
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.policy.transactions import PARTED, RESEND_S
from dpwa.wire.fetching import Ended
from dpwa.wire.proposing import ProposeSession, TransactionTerms
from dpwa.wire.transaction_messages import Agreed, Prepared, TransactionDecision

_DECLINED = (Outcome.BUSY, Outcome.NOT_READY)


class TransactionFetches:
    """The transactions of a Fetcher.

    A fetch is part of a transaction that this node has proposed, or it collects the snapshot of a
    peer that has proposed one.
    """

    def __init__(
        self, context: NodeContext, manager: TransactionManager, fetching: Fetcher
    ) -> None:
        self._fetching, self._connections = fetching, fetching.connections
        self._peer_table, self._transactions = context.peer_table, manager
        self._clock = context.runtime
        self._most_units = UNIT * most_nodes(context.config)
        self._greet, self._hear = context.greeting, context.receive_news

    def part_from(self, peer: str) -> bool:
        """Return whether to skip an exchange, because the last one was with the same peer."""
        return peer == self._transactions.partner and self._fetching.rng.random() < PARTED

    def propose(self, channel: PeerChannel, request: FetchRequest, number: int) -> Attempt | None:
        """Return an attempt that begins with a proposal. `None` if none can be made now."""
        own_version = request.own_version
        expires = self._clock.now() + request.deadline.remaining_s()
        transaction = self._transactions.propose(channel.peer, own_version, expires)
        if transaction is None:
            return None
        terms: TransactionTerms = "exchange" if request.terms is Terms.EXCHANGE else "share"
        own = own_version, request.layout, self._greet()
        session = ProposeSession(number, transaction, terms, *own)
        return Attempt(request, channel, session, 0, transaction, is_of_transaction=True)

    def answered(self, attempt: Attempt, answer: Agreed | Ended) -> None:
        """Take the answer to a proposal."""
        if isinstance(answer, Ended):
            self._fetching.attempt_failed(attempt.channel, answer.outcome, answer.detail)
        else:
            self._agreed(attempt, answer)

    def _agreed(self, attempt: Attempt, agreed: Agreed) -> None:
        """Fetch the snapshot that the peer has promised.

        If one of the two is a beginner, there is nothing to share. The node that is ahead leaves
        the transaction, and the node that is far behind copies the other's parameters. A peer that
        promises more mass than there is gets a `ProtocolError`.
        """
        own_clock, peer = attempt.request.clock, attempt.channel.peer
        self._hear(agreed.news, peer)
        if attempt.transaction is None:
            return
        self._peer_table.told_clock(peer, agreed.clock)
        if is_far_behind(agreed.clock, own_clock):
            self._fetching.attempt_failed(attempt.channel, Outcome.BEHIND)
            return
        if agreed.units > max(self._most_units, UNIT * (len(self._peer_table.names) + 1)):
            raise ProtocolError(f"{agreed.units} units of mass: more than there are")
        if not self._transactions.agreed(attempt.transaction, agreed.units):
            self._fetching.finish(Outcome.LOST)  # this node has agreed to another one meanwhile
            return
        if is_far_behind(own_clock, agreed.clock):
            self.abort_attempt(attempt, Outcome.BEHIND)
            attempt.transaction = None
            self._fetching.fetch(attempt)
            return
        attempt.version = agreed.version
        self._fetching.due = attempt.request.deadline.end
        memory = self._peer_table.memory_of(peer)
        if memory is not None:
            self.pin(attempt, memory)
        else:
            self._fetching.fetch(attempt)

    def pin(self, attempt: Attempt, memory: PeerMemory) -> None:
        """Pin the promised snapshot in shared memory."""
        lease = memory.pin(attempt.request.layout, attempt.version)
        if lease is None or lease.snapshot.version != attempt.version:
            why_not: Ended | None = Ended(Outcome.SUPERSEDED, "its snapshot is gone")
        else:
            why_not = attempt.request.objection(lease.snapshot)
        if lease is not None and why_not is None:
            nbytes = lease.snapshot.data.nbytes
            self._peer_table.exchanged(attempt.channel.peer, mapped=nbytes)
            self.have(attempt, lease)
            return
        if lease is not None:
            lease.release()
        if why_not is not None:
            self._fetching.attempt_failed(attempt.channel, why_not.outcome, why_not.detail)

    def have(self, attempt: Attempt, lease: Lease) -> None:
        """Pass on the peer's snapshot, which stays. Continue to wait if more is expected."""
        collects = attempt.request.collects
        if collects is not None:
            if self._transactions.collected(collects, lease):
                self._say_prepared(attempt.channel, collects, is_there=True)
            self._fetching.succeeded(attempt)
        elif attempt.transaction is None:
            lease.release()
        elif self._transactions.complete(attempt.transaction, lease):
            self._committed(attempt)

    def partner_prepared(self, said: Prepared) -> None:
        """Continue a transaction, because a peer has this node's snapshot, or cannot have it.

        If the transaction is over, send the peer its outcome.
        """
        attempt, transaction = self._fetching.attempt, said.transaction
        is_attempt = attempt is not None and attempt.transaction == transaction
        holds = self._transactions.prepared(transaction) if said.is_there else False
        if holds is None:
            channel = self._connections.channels.get(said.name)
            if channel is not None:
                commit = self._transactions.outcome(transaction)
                self._tell_decision(channel, transaction, commit=commit)
        elif attempt is not None and is_attempt and holds:
            self._committed(attempt)
        elif attempt is not None and is_attempt and not said.is_there:
            self._fetching.attempt_failed(attempt.channel, Outcome.BUSY)

    # What is decided, until the peers have acknowledged it

    def wait_s(self, most_s: float) -> float:
        """Return the seconds until the next check, at most `most_s`."""
        return min(RESEND_S, most_s) if self._transactions.has_undelivered else most_s

    def owes(self, peer: str) -> bool:
        """Tell whether there is a decision that a peer has not acknowledged."""
        return any(self._transactions.decisions_for(peer))

    def deliver(self) -> None:
        for transaction, peer, commit in self._transactions.decisions_due():
            channel = self._connections.channels.get(peer)
            if channel is not None and self._connections.open(channel) and channel.is_up:
                self._tell_decision(channel, transaction, commit=commit)

    def removed(self, channel: PeerChannel) -> None:
        """Send a removed peer the decisions that concern it, at the last opportunity."""
        if channel.is_up:
            for transaction, commit in self._transactions.decisions_for(channel.peer):
                self._tell_decision(channel, transaction, commit=commit)
                self._transactions.noted(transaction)

    def _tell_decision(self, channel: PeerChannel, transaction: bytes, *, commit: bool) -> None:
        request = self._fetching.next_number()
        channel.send_request(
            TransactionDecision(request=request, transaction=transaction, commit=commit)
        )

    def abort_attempt(self, attempt: Attempt | None, outcome: Outcome) -> None:
        """Abort the transaction of a failed attempt, if it is part of one."""
        if attempt is None or attempt.transaction is None:
            return
        if outcome in _DECLINED or attempt.asked_at is None:  # who was not asked need not be told
            self._transactions.refused(attempt.transaction)
        else:
            self._transactions.abort(attempt.transaction)

    def collect_failed(self, request: FetchRequest) -> None:
        """Tell a peer that its snapshot cannot be had, which aborts the transaction."""
        if request.collects is None or not self._transactions.collect_failed(request.collects):
            return
        channel = self._connections.channels.get(request.only or "")
        if channel is not None:
            self._say_prepared(channel, request.collects, is_there=False)

    def _say_prepared(self, channel: PeerChannel, transaction: bytes, *, is_there: bool) -> None:
        message = Prepared(
            request=0, transaction=transaction, name=self._greet().name, is_there=is_there
        )
        channel.send_request(message)

    def _committed(self, attempt: Attempt) -> None:
        """End the trainer's wait. It finds the snapshot in the transaction manager."""
        attempt.request.end_fetch()
        self._fetching.succeeded(attempt)
