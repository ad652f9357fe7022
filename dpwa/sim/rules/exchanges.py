"""Exchanges in virtual time: both ends merge the other's snapshot, or neither does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpwa.policy.transactions import Acceptance, DecisionOutcome
from dpwa.sim.rules.fetches import TRANSACTION_BYTES, AsyncFetch, Fetches
from dpwa.sim.rules.participant import ArrayArrival, ArraySnapshot, Participant


@dataclass(eq=False)
class AsyncExchange:
    """An exchange that was proposed."""

    transaction: bytes
    fetch: AsyncFetch  # of who has asked
    peer: Participant  # who was asked
    mine: ArraySnapshot
    theirs: ArraySnapshot
    stream_s: float = 0.0
    has_theirs: bool = False  # as far as the asking side knows
    is_prepared: bool = False


class Exchanges(Fetches):
    """All fetches of a run whose algorithm asks for exchanges.

    As in `dpwa.node.transactions`, a snapshot is in one exchange at most, and a node that has
    agreed to one asks for no other before it has merged it.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._traded: dict[int, int] = {}  # the version of each node that was exchanged last

    def _is_traded(self, node: Participant, snapshot: ArraySnapshot) -> bool:
        return snapshot.version <= self._traded.get(node.number, 0)

    def _send_request(self, fetch: AsyncFetch, peer: Participant) -> None:
        node, now = fetch.node, self.now
        snapshot = node.snapshot
        fetch.transaction = transaction = self.fleet.rng.randbytes(TRANSACTION_BYTES)
        fetch.to_peer = None
        is_free = (
            snapshot is not None
            and not node.inbox
            and not self._is_traded(node, snapshot)
            and node.transactions.propose(transaction, peer.name, now, fetch.deadline_s)
        )
        if snapshot is None or not is_free:
            self.network.call_later(0.0, lambda: self.end(fetch))
            return
        self.fleet.count(node.number, peer.number, self.sizes.asks_exchange)
        self.later(
            node.number,
            peer.number,
            lambda: self._proposed(fetch, peer, transaction, snapshot),
        )

    def end(self, fetch: AsyncFetch) -> None:
        """End a fetch; an exchange that is not decided is aborted."""
        self._abort(fetch)
        super().end(fetch)

    def _late(self, fetch: AsyncFetch, peer: Participant) -> None:
        if self.is_current(fetch, peer):
            self._abort(fetch)
        super()._late(fetch, peer)

    def _abort(self, fetch: AsyncFetch) -> None:
        peer, transaction = fetch.peer, fetch.transaction
        if fetch.is_over or peer is None or not transaction:
            return
        if not fetch.node.transactions.decide(transaction, commit=False, now=self.now):
            number, mine = fetch.node.number, fetch.to_peer

            def abort() -> None:
                self.streams.stop(mine)
                if self.fleet.is_alive[peer.number]:
                    peer.transactions.decided(transaction, commit=False)

            self.later(number, peer.number, abort)

    def _proposed(
        self, fetch: AsyncFetch, peer: Participant, transaction: bytes, mine: ArraySnapshot
    ) -> None:
        """Answer as the serving node."""
        node, fleet = fetch.node, self.fleet
        if not fleet.is_alive[peer.number]:
            self.later(peer.number, node.number, lambda: self._nobody(fetch, peer, transaction))
            return
        theirs, expires = peer.snapshot, self.now + self.timeout_s
        peer.transactions.expire(self.now)
        # Both ends fetch, so each must be able to connect to the other.
        is_new = theirs is not None and not self._is_traded(peer, theirs)
        is_new = is_new and not self.conditions.is_behind_nat(node.number)
        accepts = is_new and (
            peer.transactions.accept(transaction, node.name, self.now, expires)
            is Acceptance.ACCEPTED
        )
        if theirs is None or not accepts:
            fleet.count(peer.number, node.number, self.sizes.declines)
            self.later(peer.number, node.number, lambda: self._busy(fetch, peer, transaction))
            return
        fleet.count(peer.number, node.number, self.sizes.agrees)
        exchange = AsyncExchange(transaction, fetch, peer, mine, theirs)
        self.later(peer.number, node.number, lambda: self._agreed(exchange))
        fleet.count(peer.number, node.number, self.sizes.request)
        self.later(peer.number, node.number, lambda: self._send_mine(exchange))

    def _send_mine(self, exchange: AsyncExchange) -> None:
        """Send as the asking side what the other one fetches."""
        fetch, peer = exchange.fetch, exchange.peer
        if self.is_current(fetch, peer):
            fetch.to_peer = self.streams.begin(
                fetch.node.number, peer.number, lambda _: self._ready(exchange)
            )

    def _nobody(self, fetch: AsyncFetch, peer: Participant, transaction: bytes) -> None:
        if self.is_current(fetch, peer):
            fetch.node.transactions.decide(transaction, commit=False, now=self.now)
            fetch.node.transactions.noted(transaction)
        self._not_there(fetch, peer)

    def _busy(self, fetch: AsyncFetch, peer: Participant, transaction: bytes) -> None:
        if self.lives(fetch):
            fetch.node.transactions.refused(transaction)
        self.refused(fetch, peer)

    def _agreed(self, exchange: AsyncExchange) -> None:
        """Take as the asking side that the other one is ready to exchange."""
        fetch, peer = exchange.fetch, exchange.peer
        if not self.is_current(fetch, peer):
            return
        if not fetch.node.transactions.agreed(exchange.transaction):
            self.end(fetch)  # another one with a smaller id was accepted meanwhile
            return
        number = fetch.node.number
        self.fleet.count(number, peer.number, self.sizes.request)

        def come(stream_s: float) -> None:
            exchange.has_theirs, exchange.stream_s = True, stream_s
            self._decide(exchange)

        def send_theirs() -> None:
            if self.is_current(fetch, peer):
                fetch.stream = self.streams.begin(peer.number, number, come, lost)

        def lost(has_ended: bool) -> None:
            self._lost(fetch, peer, has_ended=has_ended)

        self.later(number, peer.number, send_theirs)

    def _ready(self, exchange: AsyncExchange) -> None:
        """Say as the serving node that the other's snapshot is there."""
        peer, number = exchange.peer, exchange.fetch.node.number
        if not self.fleet.is_alive[peer.number]:
            return
        if peer.transactions.ready(exchange.transaction):
            self.fleet.count(peer.number, number, self.sizes.prepares)

            def prepared() -> None:
                exchange.is_prepared = True
                self._decide(exchange)

            self.later(peer.number, number, prepared)

    def _decide(self, exchange: AsyncExchange) -> None:
        fetch, peer, transaction = exchange.fetch, exchange.peer, exchange.transaction
        is_complete = exchange.has_theirs and exchange.is_prepared
        if not is_complete or not self.is_current(fetch, peer):
            return
        node = fetch.node
        node.transactions.prepared(transaction)
        if node.transactions.decide(transaction, commit=True, now=self.now):
            self.fetched(fetch, peer, exchange.stream_s)
            self._traded[node.number] = exchange.mine.version
            node.inbox.append(ArrayArrival(peer, exchange.theirs, exchange.mine.values))
        self.fleet.count(node.number, peer.number, self.sizes.decides)
        self.later(node.number, peer.number, lambda: self._hear_commit(exchange))
        self.end(fetch)

    def _hear_commit(self, exchange: AsyncExchange) -> None:
        peer, node, transaction = exchange.peer, exchange.fetch.node, exchange.transaction
        if not self.fleet.is_alive[peer.number]:
            return
        outcome = peer.transactions.decided(transaction, commit=True)
        self.fleet.count(peer.number, node.number, self.sizes.notes)
        if outcome is DecisionOutcome.COMMIT:
            self._traded[peer.number] = exchange.theirs.version
            peer.inbox.append(ArrayArrival(node, exchange.mine, exchange.theirs.values))
        node.transactions.noted(transaction)
