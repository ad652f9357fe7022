"""FetchTask: one request, and the attempts that are made to meet it."""

from __future__ import annotations

from typing import Protocol

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import objection
from dpwa.node.context import NodeContext, most_nodes
from dpwa.node.fetching.fetch_request import FetchRequest, Found, SettledDeal
from dpwa.node.fetching.incoming import IncomingSnapshot
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.wire.fetching import Ended, FetchSession
from dpwa.wire.proposing import Proposal, ProposalAgreed, ProposeSession, TransactionTerms
from dpwa.wire.transaction_messages import Prepared


class Attempt:
    """A fetch from one peer; in a transaction, a proposal comes first."""

    def __init__(self, channel: PeerChannel, session: FetchSession | ProposeSession) -> None:
        self.channel = channel
        self.session = session
        # the one it is part of; `None` when it collects for a peer's transaction
        self.transaction: bytes | None = None
        self.version = 0  # of the snapshot that the transaction is about
        self.incoming: IncomingSnapshot | None = None  # what has begun to come
        # when the request left; `None` as long as the link is not up
        self.asked_at: float | None = None
        self.deadline: Deadline | None = None  # when another peer is asked
        # when the header of a stream came, as long as it lasts
        self.answered_at: float | None = None
        self.streamed_bytes = 0  # of payload, since then

    @property
    def has_expired(self) -> bool:
        return self.deadline is not None and self.deadline.expired()


class FetchTask:
    """One request under way."""

    def __init__(self, request: FetchRequest) -> None:
        self.request = request
        self.tried: set[str] = set()  # the peers that were asked
        self.attempt: Attempt | None = None

    @property
    def remaining_s(self) -> float:
        remaining_s = self.request.deadline.remaining_s()
        if self.attempt is not None and self.attempt.deadline is not None:
            remaining_s = min(remaining_s, self.attempt.deadline.remaining_s())
        return remaining_s


def is_of_transaction(request: FetchRequest, attempt: Attempt) -> bool:
    return attempt.transaction is not None or request.collects is not None


_DECLINED = (Outcome.BUSY, Outcome.NOT_READY, Outcome.OTHER_ALGORITHM)


class Fetching(Protocol):
    """What transactions need of a Fetcher."""

    active: FetchTask | None

    def fetch(self, active: FetchTask, attempt: Attempt) -> None:
        """Go on with a fetch from the same peer, in the same transaction if it is one."""

    def succeeded(self, attempt: Attempt) -> None:
        """End the request: all of it is there."""

    def attempt_failed(self, channel: PeerChannel, outcome: Outcome, detail: str = "") -> None:
        """Charge the peer of the attempt, and ask another one."""

    def finish(self, outcome: Outcome) -> None:
        """End the request under way without a snapshot."""


class TransactionFetches:
    """The transactions of a Fetcher.

    A fetch is part of a transaction that this node has proposed, or it collects the snapshot of a
    peer that has proposed one.
    """

    def __init__(self, context: NodeContext, fetching: Fetching) -> None:
        self._fetching = fetching
        self._peer_table, self._transactions, self._clock = (
            context.peer_table,
            context.transactions,
            context.clock,
        )
        self._most_units = UNIT * most_nodes(context.config)
        self._greet = context.greeting

    def propose(self, channel: PeerChannel, request: FetchRequest, number: int) -> Attempt | None:
        """Return an attempt that begins with a proposal; `None` if none can be made now."""
        target = request.target
        expires = self._clock.now() + request.deadline.remaining_s()
        transaction = self._transactions.propose(channel.peer, target.own_version, expires)
        if transaction is None:
            return None
        terms: TransactionTerms = "exchange" if target.terms is Terms.EXCHANGE else "share"
        proposal = Proposal(transaction, terms, target.own_version, target.layout, self._greet())
        attempt = Attempt(channel, ProposeSession(number, proposal))
        attempt.transaction = transaction
        return attempt

    def agreed(self, attempt: Attempt, agreed: ProposalAgreed) -> None:
        """Fetch the snapshot that the peer has promised.

        If one of both is still at the beginning, there is nothing to share: whoever is ahead leaves
        the transaction, and whoever is far behind takes over the other's parameters. A peer that
        promises more mass than there is gets a `ProtocolError`.
        """
        active = self._fetching.active
        if active is None or attempt.transaction is None:
            return
        own_clock = active.request.target.clock
        self._peer_table.told_clock(attempt.channel.peer, agreed.clock)
        if is_far_behind(agreed.clock, own_clock):
            self._fetching.attempt_failed(attempt.channel, Outcome.BEHIND)
            return
        if agreed.units > max(self._most_units, UNIT * (len(self._peer_table.names) + 1)):
            raise ProtocolError(f"{agreed.units} units of mass: more than there are")
        if not self._transactions.agreed(attempt.transaction, agreed.units):
            self._fetching.finish(Outcome.LOST)  # this node has agreed to another one meanwhile
            return
        if is_far_behind(own_clock, agreed.clock):
            self.leave(attempt, Outcome.BEHIND)
            attempt.transaction = None
            self._fetching.fetch(active, attempt)
            return
        attempt.version = agreed.version
        attempt.deadline = active.request.deadline
        memory = self._peer_table.memory_of(attempt.channel.peer)
        if memory is not None:
            self.pin(attempt, memory)
        else:
            self._fetching.fetch(active, attempt)

    def pin(self, attempt: Attempt, memory: PeerMemory) -> None:
        """Pin the promised snapshot in shared memory."""
        active = self._fetching.active
        if active is None:
            return
        pinned = _pinned(active.request, attempt, memory)
        if isinstance(pinned, Ended):
            self._fetching.attempt_failed(attempt.channel, pinned.outcome, pinned.detail)
        else:
            self.have(attempt, pinned)

    def have(self, attempt: Attempt, lease: Lease) -> None:
        active = self._fetching.active
        if active is None:
            lease.release()
        elif self._is_complete(active.request, attempt, lease):
            self._fetching.succeeded(attempt)

    def partner_prepared(self, transaction: bytes) -> bool:
        """Note that a peer has this node's snapshot; return whether the transaction is open."""
        holds, active = self._transactions.prepared(transaction), self._fetching.active
        attempt = None if active is None else active.attempt
        if active is None or attempt is None or attempt.transaction != transaction:
            return holds is not None
        if holds:
            self._tell_trainer(active.request, attempt)
            self._fetching.succeeded(attempt)
        return holds is not None

    def partner_failed(self, transaction: bytes) -> None:
        """Note that a peer cannot have, or must not merge, this node's snapshot."""
        active = self._fetching.active
        attempt = None if active is None else active.attempt
        if attempt is not None and attempt.transaction == transaction:
            self._fetching.attempt_failed(attempt.channel, Outcome.BUSY)

    def leave(self, attempt: Attempt | None, outcome: Outcome) -> None:
        """Abort the transaction of a failed attempt, if it is part of one."""
        if attempt is None or attempt.transaction is None:
            return
        if outcome in _DECLINED or attempt.asked_at is None:  # who was not asked need not be told
            self._transactions.refused(attempt.transaction)
        else:
            self._transactions.abort(attempt.transaction)

    def collect_failed(self, request: FetchRequest, channel: PeerChannel | None) -> None:
        """Tell a peer that its snapshot cannot be had, which aborts the transaction."""
        if (
            request.collects is not None
            and self._transactions.collect_failed(request.collects)
            and channel
        ):
            self._say_prepared(channel, request.collects, is_there=False)

    def _say_prepared(self, channel: PeerChannel, transaction: bytes, *, is_there: bool) -> None:
        message = Prepared(
            request=0, transaction=transaction, name=self._greet().name, is_there=is_there
        )
        channel.send(message)

    def _is_complete(self, request: FetchRequest, attempt: Attempt, lease: Lease) -> bool:
        """Hand over the peer's snapshot, which stays; return whether nothing more is awaited."""
        if request.collects is not None:
            if self._transactions.collected(request.collects, lease):
                self._say_prepared(attempt.channel, request.collects, is_there=True)
            return True
        if attempt.transaction is None or not self._transactions.complete(
            attempt.transaction, lease
        ):
            return False
        self._tell_trainer(request, attempt)
        return True

    def _tell_trainer(self, request: FetchRequest, attempt: Attempt) -> None:
        request.offer(Found(attempt.channel.peer, SettledDeal()))


def _pinned(request: FetchRequest, attempt: Attempt, memory: PeerMemory) -> Lease | Ended:
    """Pin the promised snapshot in shared memory, or say why it will not do."""
    lease = memory.pin(request.layout, attempt.version)
    if lease is None or lease.snapshot.version != attempt.version:
        if lease is not None:
            lease.release()
        return Ended(Outcome.SUPERSEDED, "its snapshot is gone")
    why_not = objection(lease.snapshot, request)
    if why_not is not None:
        lease.release()
        return why_not
    return lease
