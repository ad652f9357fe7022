"""Fetches in virtual time: pulls and shares of mass, from the first peer asked to what arrives."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.config import Config
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.arrays import part_of
from dpwa.sim.rules.fleet import Fleet
from dpwa.sim.rules.participant import WHOLE, ArrayArrival, ArraySnapshot, ArrayValues, Participant
from dpwa.sim.rules.peer_book import PeerBook
from dpwa.sim.rules.streams import SnapshotStream, SnapshotStreams
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.virtual_network import Timer, VirtualNetwork
from dpwa.wire.shards import WHOLE as WHOLE_SHARD
from dpwa.wire.shards import Shard

TRANSACTION_BYTES = 8


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
        if name is None or name in fetch.tried or left_s <= 0.0:
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
            fetch.transaction = self.fleet.rng.randbytes(TRANSACTION_BYTES)
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
