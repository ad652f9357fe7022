"""Fetches in virtual time: from the first peer asked to what arrives, over links that they share.

Pulls and shares of mass (`Fetches`), and exchanges: both ends merge the other's snapshot, or
neither does.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.config import Config
from dpwa.data.arrays import ArrayValues
from dpwa.policy.transactions import PARTED, Acceptance, DecisionOutcome
from dpwa.sim.conditions import Conditions
from dpwa.sim.links import FairLinks, SharedLink, Transfer
from dpwa.sim.rules.arrays import part_of
from dpwa.sim.rules.fleet import Fleet
from dpwa.sim.rules.participant import WHOLE, ArrayArrival, ArraySnapshot, Participant
from dpwa.sim.rules.peer_book import PeerBook
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.transport.sockets import HEARTBEAT_TIMEOUT_MS
from dpwa.virtual_network import Timer, VirtualNetwork
from dpwa.wire import limits
from dpwa.wire.shards import WHOLE as WHOLE_SHARD
from dpwa.wire.shards import Shard

Later = Callable[[int, int, Callable[[], None]], None]
"""Sends a message from one node to another, and does something when it has come."""


@dataclass(eq=False)
class SnapshotStream:
    """A snapshot on its way; see `SnapshotStreams.begin`."""

    sender: int
    receiver: int
    began_at: float
    least_s: float
    done: Callable[[float], None]
    lost: Callable[[bool], None] | None
    transfer: Transfer | None = None  # while bytes are sent
    is_over: bool = False


def _nothing(_: float) -> None:
    """Take the place of what is called no more, so that no cycle remains."""


class SnapshotStreams:
    """All snapshots that are on their way."""

    def __init__(
        self,
        conditions: Conditions,
        fleet: Fleet,
        sizes: WireSizes,
        network: VirtualNetwork,
        later: Later,
    ) -> None:
        self._conditions = conditions
        self._fleet = fleet
        self._sizes = sizes
        self._network = network
        self._later = later
        self._links = FairLinks(network)
        self._turns = max(0, math.ceil(sizes.pieces / limits.CREDIT_CHUNKS) - 1)
        # Of each node, those that it sends and receives, in the order of their beginning.
        self._of: defaultdict[int, dict[SnapshotStream, None]] = defaultdict(dict)

    def begin(
        self,
        sender: int,
        receiver: int,
        done: Callable[[float], None],
        lost: Callable[[bool], None] | None = None,
    ) -> SnapshotStream:
        """Send a snapshot.

        `done` is told how many seconds it took after the first byte; `lost` is called if it will
        not come, with whether the sender has ended (else the connection has).
        """
        least_s = self._turns * 2 * self._conditions.latency_s(sender, receiver)
        now = self._network.clock.now()
        self._fleet.served[sender] += 1
        stream = SnapshotStream(sender, receiver, now, least_s, done, lost)
        for node in (sender, receiver):
            self._of[node][stream] = None
        conditions = self._conditions
        links: dict[SharedLink, float] = {
            ("up", sender): conditions.upload_bytes_per_s,
            ("down", receiver): conditions.download_bytes_per_s,
        }
        site, between = conditions.site(sender), conditions.between_sites_bytes_per_s
        if between < math.inf and site != conditions.site(receiver):
            links["site", site] = between
        stream.transfer = Transfer(links, self._sizes.answer, lambda: self._sent(stream))
        self._links.begin(stream.transfer)
        return stream

    def stop(self, stream: SnapshotStream | None) -> None:
        """Send no more of it, as nobody waits for it; nothing if it is over."""
        if stream is None or stream.is_over:
            return
        sent = self._sizes.answer
        if stream.transfer is not None:
            self._links.end(stream.transfer)
            sent -= stream.transfer.left
        self._end(stream, sent)

    def end_of(self, node: int) -> None:
        """Stop what a process that has ended was sending and receiving."""
        for stream in tuple(self._of.pop(node, ())):
            lost = stream.lost if stream.sender == node else None
            self.stop(stream)
            if lost is not None:
                self._later(node, stream.receiver, partial(lost, True))

    def cut(self) -> None:
        """Stop what goes between nodes that are cut off from each other now."""
        now = self._network.clock.now()
        between = [
            stream
            for node in list(self._of)
            for stream in self._of[node]
            if stream.sender == node and self._conditions.is_cut(node, stream.receiver, now)
        ]
        for stream in between:
            lost = stream.lost
            self.stop(stream)
            if lost is not None:
                self._network.call_later(HEARTBEAT_TIMEOUT_MS / 1000, partial(lost, False))

    def stop_all(self) -> None:
        """Stop everything, so that what was sent until now is counted."""
        for streams in list(self._of.values()):
            for stream in list(streams):
                self.stop(stream)

    def _sent(self, stream: SnapshotStream) -> None:
        """Let it arrive, now that its last byte would be sent if there was no wait for credit."""
        stream.transfer = None
        stream_s = self._network.clock.now() - stream.began_at
        if stream_s < stream.least_s:
            waits_s = stream.least_s - stream_s
            self._network.call_later(waits_s, lambda: self._leave(stream, stream.least_s))
        else:
            self._leave(stream, stream_s)

    def _leave(self, stream: SnapshotStream, stream_s: float) -> None:
        if not stream.is_over:
            done = stream.done
            self._end(stream, self._sizes.answer)
            self._later(stream.sender, stream.receiver, lambda: done(stream_s))

    def _end(self, stream: SnapshotStream, sent: float) -> None:
        stream.is_over, stream.transfer, stream.done, stream.lost = True, None, _nothing, None
        self._fleet.count(stream.sender, stream.receiver, sent)
        for node in (stream.sender, stream.receiver):
            self._of[node].pop(stream, None)


@dataclass(eq=False)
class AsyncFetch:
    """What a node does to get a snapshot in one round."""

    node: Participant
    process: int  # which process of the node
    ask: Ask
    published: ArrayValues | None  # by the node in this round
    # of what is published now; with neighbours by the round, the peer's must be as new
    version: int
    deadline_s: float  # when it is given up
    done: Callable[[], None]  # called when it is over, once
    part: slice
    peer: Participant | None = None  # who is asked now
    peer_process: int = 0
    asked_at: float = 0.0
    tried: set[str] = field(default_factory=set)
    timer: Timer | None = None  # of the patience with that peer
    transaction: bytes = b""  # that is under way with it
    stream: SnapshotStream | None = None  # of its snapshot
    to_peer: SnapshotStream | None = None  # of the node's own one, where the two exchange theirs
    is_over: bool = False


class Fetches:
    """All fetches of a run."""

    def __init__(
        self,
        config: Config,
        conditions: Conditions,
        fleet: Fleet,
        sizes: WireSizes,
        network: VirtualNetwork,
    ) -> None:
        self.fleet = fleet
        self.sizes = sizes
        self.network = network
        self.conditions = conditions
        self.timeout_s = config.timeout_ms / 1000
        self._rules = AskRules(config, type(fleet.participants[0].algorithm))
        self.streams = SnapshotStreams(conditions, fleet, sizes, network, self.later)
        self._is_tagged = fleet.neighbourhood.changes
        self._slots = config.slots
        self._published: dict[int, deque[ArraySnapshot]] = defaultdict(
            lambda: deque(maxlen=self._slots)
        )
        self._parked: dict[int, list[AsyncFetch]] = defaultdict(list)

    @property
    def now(self) -> float:
        return self.network.clock.now()

    def begin(self, node: Participant, ask: Ask, done: Callable[[], None]) -> AsyncFetch:
        """Begin a fetch; `done` is called when it is over, later."""
        fetch = AsyncFetch(
            node=node,
            process=self.fleet.incarnations[node.number],
            ask=ask,
            published=node.published,
            version=node.updates if self._is_tagged and ask.peer is None else 0,
            deadline_s=self.now + self.timeout_s,
            done=done,
            part=self._rules.part(node, ask),
        )
        self.ask_next(fetch)
        return fetch

    def has_published(self, node: Participant) -> None:
        """Serve those who have waited for this round of a node."""
        if not self._is_tagged or node.snapshot is None:
            return
        self._published[node.number].append(node.snapshot)
        for fetch in self._parked.pop(node.number, ()):
            self._serve(fetch, node)

    def is_current(self, fetch: AsyncFetch, peer: Participant) -> bool:
        """Tell whether a fetch still waits for this peer."""
        return not fetch.is_over and fetch.peer is peer and self.lives(fetch)

    def lives(self, fetch: AsyncFetch) -> bool:
        number = fetch.node.number
        return bool(self.fleet.is_alive[number]) and (
            self.fleet.incarnations[number] == fetch.process
        )

    def ask_next(self, fetch: AsyncFetch) -> None:
        """Ask another peer, if there is time, and one to ask."""
        fleet, node, now = self.fleet, fetch.node, self.now
        if fetch.is_over or not self.lives(fetch):
            return
        book, name, left_s = fleet.books[node.number], fetch.ask.peer, fetch.deadline_s - now
        if name is None and left_s > 0.0:
            name = book.choose(now, node.updates - 1, fetch.tried, left_s)
        if left_s <= 0.0 or name is None or name in fetch.tried or self._is_parted(fetch, name):
            self.network.call_later(0.0, lambda: self.end(fetch))
            return
        fetch.tried.add(name)
        fetch.peer = peer = fleet.participants[fleet.index[name]]
        fetch.peer_process = fleet.incarnations[peer.number]
        fetch.asked_at = now
        if self.conditions.is_behind_nat(peer.number):
            book.down(name, fleet.incarnations[peer.number])
            self.ask_next(fetch)
            return
        patience_s = min(left_s, book.patience_s(name, self.timeout_s))
        fetch.timer = self.network.call_later(patience_s, lambda: self._late(fetch, peer))
        self._send_request(fetch, peer)

    def end(self, fetch: AsyncFetch) -> None:
        """End a fetch, whatever has come of it."""
        if fetch.is_over:
            return
        fetch.is_over = True
        self._stop_waiting(fetch)
        if self.lives(fetch):
            fetch.done()

    def later(self, sender: int, receiver: int, act: Callable[[], None]) -> None:
        """Do something when a message from one node has come to another; nothing if it is cut."""
        delay_s = self.conditions.delay_s(sender, receiver, self.fleet.rng)

        def arrive() -> None:
            if not self.conditions.is_cut(sender, receiver, self.now):
                act()

        self.network.call_later(delay_s, arrive)

    def refused(self, fetch: AsyncFetch, peer: Participant, *, is_known: bool = False) -> None:
        """Take that a peer has nothing for this node; ask another one."""
        if not self.is_current(fetch, peer):
            return
        if is_known:
            self.fleet.books[fetch.node.number].succeeded(peer.name)
        self._next_peer(fetch)

    def fetched(self, fetch: AsyncFetch, peer: Participant, stream_s: float) -> None:
        """Learn from a snapshot that has come in time."""
        elapsed_s = self.now - fetch.asked_at
        book = self.fleet.books[fetch.node.number]
        book.fetched(peer.name, self.sizes.answer, max(0.0, elapsed_s - stream_s), stream_s)

    def _is_parted(self, fetch: AsyncFetch, name: str) -> bool:  # noqa: ARG002
        """Tell whether a node goes on alone rather than with this one; see `PARTED`."""
        return False

    def _next_peer(self, fetch: AsyncFetch) -> None:
        self._stop_waiting(fetch)
        fetch.peer = None
        self.ask_next(fetch)

    def _stop_waiting(self, fetch: AsyncFetch) -> None:
        if fetch.timer is not None:
            fetch.timer.cancel()
        stream, fetch.stream = fetch.stream, None  # which knows of the fetch: no cycle remains
        self.streams.stop(stream)

    def _late(self, fetch: AsyncFetch, peer: Participant) -> None:
        if not self.is_current(fetch, peer):
            return
        self.fleet.books[fetch.node.number].failed(peer.name, self.now, is_late=True)
        self._next_peer(fetch)

    def _send_request(self, fetch: AsyncFetch, peer: Participant) -> None:
        number = fetch.node.number
        self.fleet.count(number, peer.number, self.sizes.request)

        def arrive() -> None:
            if not self.is_current(fetch, peer):
                return
            if not self.fleet.is_alive[peer.number]:
                self.later(peer.number, number, lambda: self._not_there(fetch, peer))
                return
            if fetch.node.follows:
                self.hear(fetch.node, peer)
            self._serve(fetch, peer)

        self.later(number, peer.number, arrive)

    def _not_there(self, fetch: AsyncFetch, peer: Participant) -> None:
        """Take that the host of a peer refuses connections: it costs no more than the way."""
        if self.is_current(fetch, peer):
            book = self.fleet.books[fetch.node.number]
            book.down(peer.name, self.fleet.incarnations[peer.number])
            self._next_peer(fetch)

    def _lost(self, fetch: AsyncFetch, peer: Participant, *, has_ended: bool) -> None:
        """Take that a peer, or the connection to it, has ended while it was sending."""
        if self.is_current(fetch, peer):
            book = self.fleet.books[fetch.node.number]
            book.failed(peer.name, self.now, is_late=False)
            if has_ended:
                book.down(peer.name, fetch.peer_process)
            self._next_peer(fetch)

    def _serve(self, fetch: AsyncFetch, peer: Participant) -> None:
        """Send what is wanted; or wait until there is something of that round."""
        if not self.is_current(fetch, peer):
            return
        snapshot, number = peer.snapshot, fetch.node.number
        book = self.fleet.books[number]
        if snapshot is not None and snapshot.version < fetch.version:
            self._parked[peer.number].append(fetch)
            return
        is_known = snapshot is not None and self._rules.is_known(
            book, peer.name, snapshot, fetch.ask, fetch.part
        )
        units = 0
        if snapshot is not None and fetch.ask.terms is Terms.SHARE:
            fetch.transaction = self.fleet.rng.randbytes(limits.TRANSACTION_BYTES)
            units = peer.mass.share(fetch.transaction) or 0
        if snapshot is None or is_known or (fetch.ask.terms is Terms.SHARE and not units):
            self.fleet.count(peer.number, number, self.sizes.refusal)
            self.later(peer.number, number, lambda: self.refused(fetch, peer, is_known=is_known))
            return
        found = self._of_round(fetch, peer, snapshot)
        transaction = fetch.transaction
        fetch.stream = self.streams.begin(
            peer.number,
            number,
            lambda stream_s: self._arrived(fetch, peer, found, units, transaction, stream_s),
            lambda has_ended: self._lost(fetch, peer, has_ended=has_ended),
        )
        if units:  # at the latest when nobody waits any more, it is known what became of it
            left_s = max(0.0, fetch.deadline_s - self.now) + self.timeout_s
            self.network.call_later(left_s, lambda: self._take_back(peer, found, transaction))

    def _of_round(
        self, fetch: AsyncFetch, peer: Participant, newest: ArraySnapshot
    ) -> ArraySnapshot:
        """Return the snapshot of the round that is wanted, or the newest if it is gone."""
        held = self._published.get(peer.number, ())
        return next((s for s in held if s.version == fetch.version), newest)

    def _arrived(
        self,
        fetch: AsyncFetch,
        peer: Participant,
        snapshot: ArraySnapshot,
        units: int,
        transaction: bytes,
        stream_s: float,
    ) -> None:
        if not self.is_current(fetch, peer):
            return
        node = fetch.node
        self.fetched(fetch, peer, stream_s)
        if node.follows:
            self.hear(peer, node)
        if units:
            peer.mass.delivered(transaction)
        book = self.fleet.books[node.number]
        book.merged.add(peer.name, snapshot.version, shard_of(fetch.part))
        node.inbox.append(ArrayArrival(peer, snapshot, fetch.published, fetch.part, units))
        self.end(fetch)

    def _take_back(self, peer: Participant, snapshot: ArraySnapshot, transaction: bytes) -> None:
        """Give a share of mass back that never came to who had asked for it."""
        factor = peer.mass.returned(transaction)
        if factor > 0.0:
            published = peer.model if peer.published is None else peer.published
            peer.model.array += factor * (snapshot.values.array - published.array)

    def hear(self, speaker: Participant, listener: Participant) -> None:
        """Pass on news of leaders."""
        news = speaker.reports.news(self.now, self.fleet.rng)
        listener.reports.hear(news, self.now)


def shard_of(part: slice) -> Shard:
    """Return what a node calls this part of the parameters: one piece for each of them."""
    return WHOLE_SHARD if part == WHOLE else Shard(1, part.start, part.stop - part.start)


class AskRules:
    """As `dpwa.node.fetch_targets` has it."""

    def __init__(self, config: Config, kind: type[Algorithm]) -> None:
        default = "merge" if kind.repeats else "skip"
        self._repeats = (config.repeat or default) == "merge"
        self._is_cut = config.fraction < 1.0 and not kind.needs_whole
        self._fraction = config.fraction

    def part(self, node: Participant, ask: Ask) -> slice:
        if not self._is_cut or ask.terms is not Terms.PULL:
            return WHOLE
        return part_of(self._fraction, node.updates - 1, len(node.x))

    def is_known(
        self, book: PeerBook, peer: str, snapshot: ArraySnapshot, ask: Ask, part: slice
    ) -> bool:
        """Tell whether this part of a snapshot was merged before, and is not wanted again."""
        if self._repeats or ask.terms is not Terms.PULL:
            return False
        return book.merged.of(peer, shard_of(part)) == snapshot.version


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
        self._partners: dict[int, str] = {}  # of the last exchange of each node

    def _is_parted(self, fetch: AsyncFetch, name: str) -> bool:
        is_again = bool(fetch.tried) and self._partners.get(fetch.node.number) == name
        return is_again and self.fleet.rng.random() < PARTED

    def _is_traded(self, node: Participant, snapshot: ArraySnapshot) -> bool:
        return snapshot.version <= self._traded.get(node.number, 0)

    def _send_request(self, fetch: AsyncFetch, peer: Participant) -> None:
        node, now = fetch.node, self.now
        snapshot = node.snapshot
        fetch.transaction = transaction = self.fleet.rng.randbytes(limits.TRANSACTION_BYTES)
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
            self._partners[node.number] = peer.name
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
            self._partners[peer.number] = node.name
            peer.inbox.append(ArrayArrival(node, exchange.mine, exchange.theirs.values))
        node.transactions.noted(transaction)
