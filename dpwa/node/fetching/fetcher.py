"""Fetcher: pursues one request at a time, from peer to peer, until it is met or expires."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import objection
from dpwa.node.context import NodeContext, most_nodes
from dpwa.node.fetching.connections import Connections
from dpwa.node.fetching.fetch_request import (
    BrokenFetchError,
    FetchRequest,
    Found,
    IncomingSnapshot,
    SettledDeal,
)
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.wire.fetching import (
    Announced,
    Ended,
    FetchSession,
    InSharedMemory,
    PieceArrived,
    ProposalAgreed,
    ProposeSession,
    TransactionTerms,
)
from dpwa.wire.messages import Cancel, Message
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


class FetchTask:
    """One request under way."""

    def __init__(self, request: FetchRequest) -> None:
        self.request = request
        self.tried: set[str] = set()  # the peers that were asked
        self.attempt: Attempt | None = None

    @property
    def due(self) -> float:
        """When it is over, or another peer is asked."""
        end = self.request.deadline.end
        another = None if self.attempt is None else self.attempt.deadline
        return end if another is None else min(end, another.end)


def is_of_transaction(request: FetchRequest, attempt: Attempt) -> bool:
    return attempt.transaction is not None or request.collects is not None


_DECLINED = (Outcome.BUSY, Outcome.NOT_READY, Outcome.OTHER_ALGORITHM)


class TransactionFetches:
    """The transactions of a Fetcher.

    A fetch is part of a transaction that this node has proposed, or it collects the snapshot of a
    peer that has proposed one.
    """

    def __init__(self, context: NodeContext, fetching: Fetcher) -> None:
        self._fetching = fetching
        self._peer_table, self._transactions, self._clock = (
            context.peer_table,
            context.transactions,
            context.runtime,
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
        own = target.own_version, target.layout, self._greet()
        attempt = Attempt(channel, ProposeSession(number, transaction, terms, *own))
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


CONNECTED_WITHIN_S = 0.25  # or this share of the time left, before another of many peers is asked
CONNECTED_WITHIN = 0.25


class Fetcher:
    """Meets one request at a time for the TxThread; a peer that is down is skipped at once."""

    def __init__(self, connections: Connections, context: NodeContext, rng: random.Random) -> None:
        self._connections, self._channels = connections, connections.channels
        self._peer_table, self._clock = context.peer_table, context.runtime
        self._greet, self._hear = context.greeting, context.hear
        # what a fetch for one says to its manager and to the partner
        self.transactions = TransactionFetches(context, self)
        self._rng = rng
        self.active: FetchTask | None = None
        self._requests = itertools.count(1)
        self._buffer: ByteArray = np.empty(0, np.uint8)

    @property
    def receive_bytes(self) -> int:
        return self._buffer.nbytes

    def next_request(self) -> int:
        return next(self._requests)

    @property
    def due(self) -> float:
        """When to call `keep_deadlines`."""
        return math.inf if self.active is None else self.active.due

    def pursue(self, request: FetchRequest) -> None:
        self.keep_deadlines(self._clock.now())  # of the one before
        self.give_up(Outcome.TIMED_OUT)
        self.active = FetchTask(request)
        self._ask_next_peer()

    def give_up(self, outcome: Outcome, *, charge: bool = False) -> None:
        """End the request under way without a snapshot; `charge` the peer that was asked."""
        self._cancel()
        if charge:
            self._charge(outcome)
        self.finish(outcome)

    def keep_deadlines(self, now: float) -> None:
        active = self.active
        if active is None or now < active.due:
            return
        attempt = active.attempt
        if attempt is not None:
            self._measure_stream(attempt)
        if attempt is None or now >= active.request.deadline.end:
            self.give_up(Outcome.TIMED_OUT, charge=True)
        elif attempt.asked_at is None:
            self.attempt_failed(attempt.channel, Outcome.UNREACHABLE, "no connection in time")
        else:
            self._cancel()
            self.attempt_failed(attempt.channel, Outcome.TIMED_OUT, "slower than it used to be")

    def is_asking(self, channel: PeerChannel) -> bool:
        """Tell whether a fetch from this peer is under way."""
        return self._attempt_with(channel) is not None

    # What happens to a peer

    def link_changed(self, channel: PeerChannel, state: LinkState) -> None:
        attempt = self._attempt_with(channel)
        if attempt is None or self.active is None:
            return
        if state is LinkState.UP:
            self._request(self.active, attempt)
        elif state is LinkState.DOWN:
            was_asked = attempt.asked_at is not None
            self.attempt_failed(channel, Outcome.LOST if was_asked else Outcome.UNREACHABLE)

    def removed(self, channel: PeerChannel) -> None:
        if self._attempt_with(channel) is not None:
            self._ask_another_peer(Outcome.LOST)

    def failed(self, channel: PeerChannel, outcome: Outcome, detail: str) -> None:
        """Charge a peer with its failure, and try another one."""
        if self._attempt_with(channel) is not None:
            self._cancel()
        self.attempt_failed(channel, outcome, detail)

    def receive(self, channel: PeerChannel, message: Message, payload: Frame) -> bool:
        """Take an answer of a peer; return whether it was waited for.

        Raises `ProtocolError` if it is not allowed here, `BrokenFetchError` if its content must not
        be merged.
        """
        attempt = self._attempt_with(channel)
        if attempt is None or attempt.session.request != message.request:
            return False
        match attempt.session.receive(message, payload):
            case PieceArrived() as arrived:
                attempt.streamed_bytes += len(payload)
                self._piece_arrived(attempt, arrived)
            case InSharedMemory() as found:
                self._in_shared_memory(attempt, found)
            case Announced() as announced:
                self._hear(announced.header.news, channel.peer)
                self._announced(attempt, announced)
            case ProposalAgreed() as agreed:
                self._hear(agreed.news, channel.peer)
                self.transactions.agreed(attempt, agreed)
            case Ended() as ended:
                self.attempt_failed(channel, ended.outcome, ended.detail)
        return True

    # Asking

    def _ask_next_peer(self) -> None:
        """Ask the next peer that flow control picks and that is not down."""
        active = self.active
        while active is not None:
            active.attempt = None
            name = self._next_peer(active)
            if name is None:
                self.finish(Outcome.UNREACHABLE)
                return
            active.tried.add(name)
            channel = self._channels.get(name)
            can_open = channel is not None and self._connections.open(channel)
            if channel is None or not can_open or channel.state is LinkState.DOWN:
                self._peer_table.record(name, Outcome.UNREACHABLE)
                continue
            self._attempt(active, channel)
            return

    def _next_peer(self, active: FetchTask) -> str | None:
        request = active.request
        if request.first is not None and request.first not in active.tried:
            return request.first
        if request.target.only is not None:
            return None
        budget_s = request.deadline.remaining_s()
        return self._peer_table.choose(self._rng, active.tried, request.target.among, budget_s)

    def _attempt(self, active: FetchTask, channel: PeerChannel) -> None:
        """Ask a peer, now or as soon as its link is up."""
        request, number = active.request, self.next_request()
        if request.target.terms is Terms.PULL or request.collects is not None:
            version = request.target.version
            session = channel.fetch(number, request, self._greet(), version)
            active.attempt = Attempt(channel, session)
            active.attempt.version = version
        else:
            active.attempt = self.transactions.propose(channel, request, number)
            if active.attempt is None:
                self.finish(Outcome.BUSY)
                return
        if channel.is_up:
            self._request(active, active.attempt)
        elif not self._connections.keeps_all and request.target.only is None:
            share_s = CONNECTED_WITHIN * request.deadline.remaining_s()
            active.attempt.deadline = Deadline(self._clock, max(CONNECTED_WITHIN_S, share_s))

    def _request(self, active: FetchTask, attempt: Attempt) -> None:
        budget_s = active.request.deadline.remaining_s()
        patience_s = self._peer_table.patience_s(attempt.channel.peer, budget_s)
        message = attempt.session.request_message(int(budget_s * 1000))
        if attempt.channel.send(message):
            attempt.asked_at = self._clock.now()
            # An agreed transaction waits for the other side, and a round for those who are behind.
            is_transaction = attempt.version > 0 and is_of_transaction(active.request, attempt)
            waits = is_transaction or active.request.target.version > 0
            attempt.deadline = Deadline(self._clock, budget_s if waits else patience_s)
        else:
            self.attempt_failed(attempt.channel, Outcome.UNREACHABLE)

    # What comes

    def _piece_arrived(self, attempt: Attempt, arrived: PieceArrived) -> None:
        session = attempt.session
        credit = session.credit() if isinstance(session, FetchSession) else None
        if credit is not None:
            attempt.channel.send(credit)
        if attempt.incoming is not None:
            attempt.incoming.add(arrived.piece, arrived.payload)
        if arrived.is_last:
            self._measure_stream(attempt)
            self._all_arrived(attempt)

    def _all_arrived(self, attempt: Attempt) -> None:
        incoming, request = attempt.incoming, None if self.active is None else self.active.request
        if request is None or incoming is None:
            self.succeeded(attempt)
            return
        if is_of_transaction(request, attempt):
            lease = Lease(incoming.snapshot(request.layout))
            self.transactions.have(attempt, lease)
            return
        if not request.offer(Found(attempt.channel.peer, incoming)):
            self.give_up(Outcome.TIMED_OUT, charge=True)  # the trainer has gone on without it
            return
        self.succeeded(attempt)

    def _in_shared_memory(self, attempt: Attempt, found: InSharedMemory) -> None:
        active, memory = self.active, attempt.channel.map(found)
        if active is None:
            return
        self._measure_latency(active.request, attempt)
        self._peer_table.share(attempt.channel.peer, memory)
        if memory is not None and is_of_transaction(active.request, attempt):
            self.transactions.pin(attempt, memory)
        elif memory is not None:
            active.request.offer(Found(attempt.channel.peer, memory))
            self.succeeded(attempt)
        elif attempt.channel.may_stream:
            self.fetch(active, attempt)  # the same peer again, for a stream
        else:
            self.attempt_failed(attempt.channel, Outcome.NOT_MAPPED)

    def _announced(self, attempt: Attempt, announced: Announced) -> None:
        active, channel = self.active, attempt.channel
        if active is None:
            return
        self._measure_latency(active.request, attempt)
        attempt.answered_at = self._clock.now()
        if not channel.may_stream:
            self._cancel()
            self.attempt_failed(channel, Outcome.NOT_MAPPED)
            return
        header = announced.header
        self._peer_table.told_clock(channel.peer, header.clock)
        if header.loss == math.inf or (active.request.is_finite and header.is_finite is False):
            what = "loss is" if header.loss == math.inf else "parameters or buffers are"
            raise BrokenFetchError(Outcome.DIVERGED, f"its {what} not finite")
        if is_far_behind(header.clock, active.request.target.clock):
            raise BrokenFetchError(Outcome.BEHIND)
        if is_of_transaction(active.request, attempt):
            if header.version != attempt.version:
                raise BrokenFetchError(Outcome.SUPERSEDED, "its snapshot is gone")
            buffer = np.empty(header.nbytes, np.uint8)  # until the trainer has merged it
            attempt.incoming = channel.incoming(active.request, announced, buffer)
            return
        attempt.incoming = channel.incoming(active.request, announced, self._room(header.nbytes))

    def succeeded(self, attempt: Attempt) -> None:
        """All of it is there; whether it can be merged is for the node to tell and to record."""
        if attempt.asked_at is not None:
            self._peer_table.fetched_in(attempt.channel.peer, self._clock.now() - attempt.asked_at)
        if self.active is not None:
            self.active.request.end()
            self.active = None

    def _measure_latency(self, request: FetchRequest, attempt: Attempt) -> None:
        """Learn how long the peer took to answer, if it did not wait for others to catch up."""
        waited = request.target.version > 0 and not is_of_transaction(request, attempt)
        if attempt.asked_at is not None and not waited:
            latency_s = self._clock.now() - attempt.asked_at
            self._peer_table.answered_in(attempt.channel.peer, latency_s)

    def _measure_stream(self, attempt: Attempt) -> None:
        """Learn how fast the peer sends, from all that has come or from what came in time."""
        if attempt.answered_at is not None:
            elapsed_s = self._clock.now() - attempt.answered_at
            attempt.answered_at = None  # for what else this may wait is no part of the stream
            self._peer_table.streamed(attempt.channel.peer, attempt.streamed_bytes, elapsed_s)

    def fetch(self, active: FetchTask, attempt: Attempt) -> None:
        channel, number = attempt.channel, self.next_request()
        session = channel.fetch(number, active.request, self._greet(), attempt.version)
        again = Attempt(channel, session)
        again.transaction, again.version = attempt.transaction, attempt.version
        active.attempt = again
        self._request(active, again)

    # How it ends

    def attempt_failed(self, channel: PeerChannel, outcome: Outcome, detail: str = "") -> None:
        if self._attempt_with(channel) is not None:
            self._charge(outcome, detail)
            self._ask_another_peer(outcome)

    def _ask_another_peer(self, outcome: Outcome) -> None:
        if self.active is None:
            return
        self.transactions.leave(self.active.attempt, outcome)
        self._ask_next_peer()

    def _charge(self, outcome: Outcome, detail: str = "") -> None:
        if self.active is not None and self.active.attempt is not None:
            self._peer_table.record(self.active.attempt.channel.peer, outcome, detail)

    def _cancel(self) -> None:
        attempt = None if self.active is None else self.active.attempt
        if attempt is not None and attempt.asked_at is not None:
            attempt.channel.send(Cancel(request=attempt.session.request))

    def finish(self, outcome: Outcome) -> None:
        active, self.active = self.active, None
        if active is None:
            return
        self.transactions.leave(active.attempt, outcome)
        channel = self._channels.get(active.request.target.only or "")
        self.transactions.collect_failed(active.request, channel)
        active.request.end()

    def _attempt_with(self, channel: PeerChannel) -> Attempt | None:
        attempt = None if self.active is None else self.active.attempt
        return attempt if attempt is not None and attempt.channel is channel else None

    def _room(self, nbytes: int) -> ByteArray:
        """Return the receive buffer, reused between fetches of one size."""
        if self._buffer.nbytes != nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer
