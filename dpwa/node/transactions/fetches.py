"""The fetches of transactions, on the TxThread: proposals, collected snapshots, decisions."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from dpwa.algorithms import Terms
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import BrokenFetchError, FetchRequest, IncomingSnapshot
from dpwa.node.context import NodeContext, most_nodes
from dpwa.node.fetching.connections import Connections
from dpwa.node.fetching.fetcher import Attempt, Fetcher
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.node.transactions.manager import TransactionManager
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.policy.transactions import PARTED
from dpwa.types import Frame
from dpwa.wire.fetching import Ended
from dpwa.wire.messages import Message, SnapshotHeader
from dpwa.wire.proposing import ProposeSession, TransactionTerms
from dpwa.wire.transaction_messages import Agreed, Prepared, TransactionDecision

_DECLINED = (Outcome.BUSY, Outcome.NOT_READY)


@dataclass(eq=False, kw_only=True)
class Collection(FetchRequest):
    """A request for the snapshot of a peer that has proposed a transaction."""

    transaction: bytes


@dataclass(eq=False, kw_only=True)
class TransactionAttempt(Attempt):
    """A fetch that is part of a transaction. An own one begins with a proposal."""

    transaction: bytes

    @property
    def is_own(self) -> bool:
        """Whether this node has proposed the transaction."""
        return not isinstance(self.request, Collection)


class TransactionFetcher(Fetcher):
    """A Fetcher that also proposes transactions, and collects the snapshots for them."""

    def __init__(
        self,
        connections: Connections,
        context: NodeContext,
        rng: random.Random,
        manager: TransactionManager,
    ) -> None:
        super().__init__(connections, context, rng)
        self._name, self._pool = context.name, context.pool
        self._transactions = manager
        self._most_units = UNIT * most_nodes(context.config)

    def pursue(self, request: FetchRequest) -> None:
        """Start a request, unless this node has agreed to an exchange."""
        if request.terms is Terms.EXCHANGE and self._transactions.is_engaged:
            request.end_fetch()
        else:
            super().pursue(request)
        self.deliver()

    def next_peer(self, request: FetchRequest) -> str | None:
        """Return the next peer, or `None` if no peer is left.

        After a failed attempt, `None` replaces the last partner with the probability `PARTED`.
        """
        name = super().next_peer(request)
        is_draw = request.terms is Terms.EXCHANGE and request.only is None and bool(self._tried)
        is_same = is_draw and name is not None and name == self._transactions.partner
        return None if is_same and self.rng.random() < PARTED else name

    def new_attempt(self, request: FetchRequest, channel: PeerChannel) -> Attempt | None:
        if isinstance(request, Collection):
            session, version = self.session(request, channel, request.version), request.version
            of = request.transaction
            return TransactionAttempt(request, channel, session, version, transaction=of)
        if request.terms is Terms.PULL:
            return super().new_attempt(request, channel)
        version = self._pool.version
        transaction = self._transactions.propose(channel.peer, version, request.deadline.end)
        if transaction is None:
            return None
        terms: TransactionTerms = "exchange" if request.terms is Terms.EXCHANGE else "share"
        own = version, request.layout, self._greet()
        proposal = ProposeSession(next(self._numbers), transaction, terms, *own)
        return TransactionAttempt(request, channel, proposal, 0, transaction=transaction)

    def answered(self, attempt: Attempt, message: Message, payload: Frame) -> None:
        """Take the answer to a proposal."""
        if isinstance(attempt, TransactionAttempt) and isinstance(attempt.session, ProposeSession):
            answer = attempt.session.receive(message, payload)
            if isinstance(answer, Ended):
                self.attempt_failed(attempt.channel, answer.outcome, answer.detail)
            else:
                self._agreed(attempt, answer)

    def _agreed(self, attempt: TransactionAttempt, agreed: Agreed) -> None:
        """Fetch the snapshot that the peer has promised.

        If one of the two is a beginner, there is nothing to share. The node that is ahead leaves
        the transaction, and the node that is far behind copies the other's parameters. A peer that
        promises more mass than there is gets a `ProtocolError`.
        """
        request, channel = attempt.request, attempt.channel
        self._hear(agreed.news, channel.peer)
        self._peer_table.told_clock(channel.peer, agreed.clock)
        if is_far_behind(agreed.clock, request.clock):
            self.attempt_failed(channel, Outcome.BEHIND)
            return
        if agreed.units > max(self._most_units, UNIT * (len(self._peer_table.names) + 1)):
            raise ProtocolError(
                f"the peer offered {agreed.units} units of weight, but all nodes together have less"
            )
        if not self._transactions.agreed(attempt.transaction, agreed.units):
            # This node has decided the transaction before the answer came.
            self.end_attempt(Outcome.LOST, is_charged=False)
            self.finish()
            return
        if is_far_behind(request.clock, agreed.clock):
            self.end_attempt(Outcome.BEHIND, is_charged=False)
            self.attempt = copying = super().new_attempt(request, channel)
            if copying is not None:
                self.ask(copying)
            return
        attempt.version = agreed.version
        self.due = request.deadline.end
        memory = self._peer_table.memory_of(channel.peer)
        if memory is not None:
            self._pin(attempt, memory)
        else:
            self.fetch(attempt)

    def buffer_for(self, attempt: Attempt, header: SnapshotHeader) -> ByteArray:
        """Return a buffer for a snapshot. A transaction's buffer is kept until the merge."""
        if not isinstance(attempt, TransactionAttempt):
            return super().buffer_for(attempt, header)
        if header.version != attempt.version:
            raise BrokenFetchError(Outcome.SUPERSEDED, "the peer no longer has the snapshot")
        return np.empty(header.nbytes, np.uint8)

    def found(self, attempt: Attempt, found: IncomingSnapshot | PeerMemory) -> None:
        if not isinstance(attempt, TransactionAttempt):
            super().found(attempt, found)
        elif isinstance(found, PeerMemory):
            self._pin(attempt, found)
        else:
            self._have(attempt, Lease(found.snapshot(attempt.request.layout)))

    def _pin(self, attempt: TransactionAttempt, memory: PeerMemory) -> None:
        """Pin the promised snapshot in shared memory."""
        lease = memory.pin(attempt.request.layout, attempt.version)
        if lease is None or lease.snapshot.version != attempt.version:
            why_not: Ended | None = Ended(Outcome.SUPERSEDED, "the peer no longer has the snapshot")
        else:
            why_not = attempt.request.objection(lease.snapshot)
        if lease is not None and why_not is None:
            nbytes = lease.snapshot.data.nbytes
            self._peer_table.exchanged(attempt.channel.peer, mapped=nbytes)
            self._have(attempt, lease)
            return
        if lease is not None:
            lease.release()
        if why_not is not None:
            self.attempt_failed(attempt.channel, why_not.outcome, why_not.detail)

    def _have(self, attempt: TransactionAttempt, lease: Lease) -> None:
        """Add the peer's snapshot to the transaction. Commit an own transaction once complete."""
        transaction = attempt.transaction
        if not attempt.is_own:
            if self._transactions.collected(transaction, lease):
                self._say_prepared(attempt.channel, transaction, is_there=True)
            self.succeeded(attempt)
        elif self._transactions.complete(transaction, lease):
            self._committed(attempt)

    def partner_prepared(self, said: Prepared) -> None:
        """Continue a transaction after a peer has fetched this node's snapshot, or failed to.

        If the transaction is over, send the peer its outcome.
        """
        transaction, attempt = said.transaction, self._attempt_of(said.transaction)
        holds = self._transactions.prepared(transaction) if said.is_there else False
        if holds is None:
            channel = self._channels.get(said.name)
            if channel is not None:
                commit = self._transactions.outcome(transaction)
                self._tell_decision(channel, transaction, commit=commit)
        elif attempt is not None and holds:
            self._committed(attempt)
        elif attempt is not None and not said.is_there:
            self.attempt_failed(attempt.channel, Outcome.BUSY)

    def _attempt_of(self, transaction: bytes) -> TransactionAttempt | None:
        """Return the current attempt, if this node proposed `transaction` in that attempt."""
        attempt = self.attempt
        if not isinstance(attempt, TransactionAttempt) or not attempt.is_own:
            return None
        return attempt if attempt.transaction == transaction else None

    def _committed(self, attempt: TransactionAttempt) -> None:
        """End the trainer's wait for a snapshot, which is in the transaction manager now."""
        attempt.request.end_fetch()
        self.succeeded(attempt)
        self.deliver()

    # How it ends without a snapshot

    def end_attempt(self, outcome: Outcome, detail: str = "", *, is_charged: bool = True) -> None:
        """End the current attempt, and abort its transaction."""
        attempt = self.attempt
        super().end_attempt(outcome, detail, is_charged=is_charged)
        if not isinstance(attempt, TransactionAttempt) or not attempt.is_own:
            return
        if outcome in _DECLINED or attempt.asked_at is None:  # who was not asked need not be told
            self._transactions.refused(attempt.transaction)
        else:
            self._transactions.abort(attempt.transaction)
            self.deliver()

    def finish(self) -> None:
        """End the current request. If it was to collect, tell the peer, which then aborts."""
        request = self._request
        super().finish()
        if not isinstance(request, Collection):
            return
        if self._transactions.collect_failed(request.transaction):
            channel = self._channels.get(request.only or "")
            if channel is not None:
                self._say_prepared(channel, request.transaction, is_there=False)

    def _say_prepared(self, channel: PeerChannel, transaction: bytes, *, is_there: bool) -> None:
        message = Prepared(request=0, transaction=transaction, name=self._name, is_there=is_there)
        channel.send_request(message)

    # What is decided, until the peers have acknowledged it

    def needs(self, channel: PeerChannel) -> bool:
        """Return whether a peer must stay connected, for a fetch or an unacknowledged decision."""
        return super().needs(channel) or any(self._transactions.decisions_for(channel.peer))

    def deliver(self) -> None:
        """Send the decisions that are due, for the first time or again."""
        for transaction, peer, commit in self._transactions.decisions_due():
            channel = self._channels.get(peer)
            if channel is not None and self.connections.open(channel) and channel.is_up:
                self._tell_decision(channel, transaction, commit=commit)

    def removed(self, channel: PeerChannel) -> None:
        """Send all unacknowledged decisions to a removed peer, before the link closes."""
        super().removed(channel)
        if channel.is_up:
            for transaction, commit in self._transactions.decisions_for(channel.peer):
                self._tell_decision(channel, transaction, commit=commit)
                self._transactions.noted(transaction)

    def _tell_decision(self, channel: PeerChannel, transaction: bytes, *, commit: bool) -> None:
        request = next(self._numbers)
        channel.send_request(
            TransactionDecision(request=request, transaction=transaction, commit=commit)
        )
