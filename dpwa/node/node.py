"""Node: one member of the gossip. Ties the pool, the peers and the two threads to a configuration.

The training thread calls `send` and `wait`; it never touches a socket, and the network threads
never touch the model.
"""

from __future__ import annotations

import logging
import math
import os
import random
import secrets
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import dpwa
from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config, NodeConfig, peer_config
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.data.shared_memory import NEWS_BYTES
from dpwa.data.snapshot import Copy, Lease, Snapshot, SnapshotPool
from dpwa.errors import AddressError, ClosedError
from dpwa.lifecycle import Closeable
from dpwa.node.arrival import (
    WHOLE_SNAPSHOT,
    Arrival,
    FetchTerms,
    Merge,
    Source,
    divergence,
    mapped,
    settled,
    streamed,
)
from dpwa.node.assembly import (
    algorithm_of,
    channel_settings,
    codec_of,
    neighbours_of,
    shared_memory_of,
)
from dpwa.node.deal_desk import DealDesk, Settled
from dpwa.node.fetch_order import FetchOrder, Found, SettledDeal, Wanted
from dpwa.node.fetcher import Surroundings
from dpwa.node.incoming import BrokenFetchError, Incoming
from dpwa.node.kept import KeptSnapshots
from dpwa.node.logs import configure_logging
from dpwa.node.newsroom import Newsroom
from dpwa.node.peers import PeerBook
from dpwa.node.services import (
    Collector,
    DealService,
    GoodbyeService,
    NewsService,
    StatusService,
)
from dpwa.node.snapshot_service import Introduction, ServingSettings, SnapshotService
from dpwa.node.threads import NodeThreads
from dpwa.node.tx_thread import AddPeer, PartnerPrepared, PassOnNews, RemovePeer
from dpwa.node.view import NodeView
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.policy.quarantine import Quarantine
from dpwa.transport.addresses import resolved
from dpwa.types import JsonObject, Standing
from dpwa.wire.fetching import Greeting, share_of
from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.shards import WHOLE, shard_of

log = logging.getLogger("dpwa.node")

NEWS_EVERY_S = 0.005
POLL_S = 0.001
GRACE_S = 0.02  # what `wait` grants the TxThread past the deadline to report its result


@dataclass(frozen=True)
class _Round:
    """What one `begin` left to be waited for: the fetch, if any, and its own snapshot."""

    order: FetchOrder | None
    published: Lease | None

    @property
    def snapshot(self) -> Snapshot | None:
        """What this node has published in the round."""
        return None if self.published is None else self.published.snapshot

    def end(self) -> None:
        if self.published is not None:
            self.published.release()


class Node(Closeable):
    """A node of the configuration, listening as soon as it is made; close it when done.

    Raises:
        UnknownNameError: the configuration has no node of this name.
        AddressError: its address cannot be listened on.

    Attributes:
        name, config: as given.
        seed: of all its randomness.
        algorithm: what it runs.
        view: what the algorithm may know of it.
    """

    def __init__(self, name: str, config: Config, clock: Clock | None = None) -> None:
        own = config.node(name)
        configure_logging(config.log_level)
        self.name = name
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        self.algorithm = algorithm_of(config)
        self._time = clock or SystemClock()
        self._started = self._time.now()
        self._method = interpolation(config.interpolation)
        self._options = config.options_of(config.interpolation)
        self._neighbours = neighbours_of(config, name)
        self._peer_rng = self._rng("peer")
        self._standing = Standing(clock=0.0)
        self._has_measured = False  # whether the loss of this update was told already
        self._chooses_by_other_loss = False
        self._fresh_merges: list[tuple[str, float]] = []  # made after the last loss
        self._round: _Round | None = None
        self._turn = 0  # which shard of the parameters is next
        self._merges = 0
        self._book = PeerBook(name, self._time)
        self._newsroom = Newsroom(
            name,
            own.group or "",
            config.loss_window,
            config.leader_silence_s,
            self._time,
            self._rng("news"),
        )
        self.view = NodeView(name, config, self._book, self._newsroom, self._rng("fetch"))
        self._follows = self.algorithm.follows_leaders or self.view.asks_leader
        self._told_at = -math.inf
        self._quarantine = Quarantine(duration_s=config.quarantine_s)
        self._pool = SnapshotPool(
            self._time, self._longest_s, config.slots, shared_memory_of(config)
        )
        self._kept = KeptSnapshots()
        self._desk = DealDesk(name, self.algorithm.terms, self._pool, self._time)
        self._greeting = Introduction(
            name, config.algorithm, self._newsroom.hear, self._newsroom.news
        )
        self._snapshots = SnapshotService(
            self._greeting,
            self._pool,
            self._kept,
            self._time,
            ServingSettings(self._longest_s, partial(codec_of, config), config.topk.resync_every),
        )
        try:
            self._threads = NodeThreads(
                name, resolved(own.listen_endpoint), self._surroundings(), self._time
            )
            self._open()
        except AddressError as error:
            self._pool.close()
            raise AddressError(f"node {name!r} {error}") from None
        except BaseException:
            self._pool.close()
            raise
        # The threads know the node only weakly: one that is forgotten is closed when it is
        # collected, or at the end of the program.
        self._close_all = weakref.finalize(self, _close, self._threads, self._desk, self._pool)
        for peer in config.peers_of(name):
            self._connect(peer)
        log.info("%s: listening on %s, seed %d", name, self._threads.endpoint, self.seed)

    @property
    def _longest_s(self) -> float:
        return 2 * self.config.timeout_ms / 1000

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}/{purpose}")

    def _surroundings(self) -> Surroundings:
        newsroom, name, algorithm = self._newsroom, self.name, self.config.algorithm
        return Surroundings(
            book=self._book,
            desk=self._desk,
            greet=lambda: Greeting(name, algorithm, newsroom.news()),
            hear=newsroom.hear,
            rng=self._rng("other"),
            clock=self._time,
        )

    def _open(self) -> None:
        report = weakref.WeakMethod(self.report)
        book, desk, newsroom, tx = self._book, self._desk, self._newsroom, self._threads.tx

        def gone(peer: str) -> None:
            book.said_goodbye(peer)
            desk.gone(peer)
            newsroom.forget(peer)

        self._threads.open(
            [
                self._snapshots,
                NewsService(self._greeting),
                DealService(
                    self._greeting,
                    desk,
                    self._pool.layout,
                    Collector(book, tx, self._time),
                    lambda deal: tx.order(PartnerPrepared(deal)),
                ),
                StatusService(lambda: _called(report)),
                GoodbyeService(gone),
            ]
        )

    # The gossip

    @property
    def clock(self) -> float:
        """Number of updates, interpolated at each merge like the parameters."""
        return self._standing.clock

    @property
    def version(self) -> int:
        """Version of the newest published snapshot; 0 before the first, never interpolated."""
        return self._pool.version

    def choose_leaders_by(self, loss: float | None) -> None:
        """Take a loss by which leaders are chosen, from now on, in place of the training loss."""
        self._chooses_by_other_loss = True
        self._newsroom.measured(loss)

    def begin(self, loss: float | None) -> NodeView:
        """Begin an update: end the one before, advance the clock, tell the news.

        Args:
            loss: of this node now; `None` when it has not measured one.

        Returns:
            What this node knows, for the algorithm.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_round()
        self._standing = Standing(clock=self._standing.clock + 1.0, loss=loss)
        self.view.updates += 1
        if not self._has_measured:
            self._measured(loss)
        self._has_measured = False
        self._blame_later()
        self._newsroom.tell(self.view.updates)
        if self._follows:
            self._spread_news()
        return self.view

    def publish(self, layout: Layout, nbytes: int, write: Callable[[ByteArray], Copy]) -> bool:
        """Publish a snapshot that `write` fills; peers read it until the next one.

        Never waits. When slow readers hold every slot of the pool, nothing is published this time.

        Args:
            layout: what the bytes mean.
            nbytes: how many there are.
            write: fills the snapshot, shape `(nbytes,)`, or starts to.

        Returns:
            Whether it is published.
        """
        lease = self._pool.publish(layout, nbytes, self._standing, write)
        if lease is not None:
            self._desk.published()
        self._round = _Round(None, lease)
        return lease is not None

    def ask(self, ask: Ask, layout: Layout, terms: FetchTerms = WHOLE_SNAPSHOT) -> None:
        """Start a fetch. Never waits.

        Args:
            ask: whom, and for what.
            layout: what the peer's snapshot must be like.
            terms: of the fetch.
        """
        deadline = Deadline(self._time, self.config.timeout_ms / 1000)
        order = FetchOrder(self._wanted(ask, layout, terms), deadline)
        published = None if self._round is None else self._round.published
        self._round = _Round(order, published)
        if ask.terms is not Terms.PULL:
            if ask.terms is Terms.EXCHANGE and self._desk.is_engaged:
                order.end()
            else:
                self._threads.tx.order(order)
            return
        if order.first is None:
            order.first = self._book.choose(self._peer_rng, (), order.wanted.among)
        memory = None if order.first is None else self._book.memory_of(order.first)
        if order.first is not None and memory is not None:
            order.offer(Found(order.first, memory))  # it lies there: nobody needs to be asked
        else:
            self._threads.tx.order(order)

    def send(
        self,
        layout: Layout,
        nbytes: int,
        loss: float | None,
        write: Callable[[ByteArray], Copy],
        terms: FetchTerms = WHOLE_SNAPSHOT,
    ) -> None:
        """Begin an update, publish, and ask whom the algorithm wants to ask; never waits.

        Raises:
            ClosedError: the node was closed.
        """
        view = self.begin(loss)
        self.publish(layout, nbytes, write)
        ask = self.algorithm.asks(view)
        if ask is not None:
            self.ask(ask, layout, terms)

    def wait(self, loss: float | None, merge: Merge) -> Arrival | None:
        """Wait for the fetch that the last `ask` started, and merge what comes.

        Waits at most until `timeout_ms` after that. The clock is merged here, the parameters by
        `merge`, on this thread, and so is what other nodes have agreed on with this one. A peer
        that has diverged, by its loss or its parameters, is not merged.

        Args:
            loss: this node's at the moment of merging; `None` stands for the one passed to `begin`.
            merge: merges an arrival; returns the factor that it took.

        Returns:
            What was merged, the last if there was more; `None` when nothing was, whatever the
            reason.

        Raises:
            ClosedError: the node was closed.
            UserError: a rule of the user's own returned an impossible factor.
        """
        self._check_open()
        if loss is not None:
            self._standing = Standing(clock=self._standing.clock, loss=loss)
            self._measured(loss)
        round_, self._round = self._round, None
        try:
            arrival = None
            if round_ is not None and round_.order is not None:
                arrival = self._fetched(round_.order, round_, merge)
            for deal in self._desk.take():
                arrival = self._merge_deal(deal, round_, merge) or arrival
            return arrival
        finally:
            if round_ is not None:
                round_.end()

    def skip(self) -> None:
        """Do without what the last `ask` started, and without what was agreed on."""
        self._end_round()
        for deal in self._desk.take():
            deal.release()

    def renew_algorithm(self) -> Algorithm:
        """Begin anew with the algorithm, as the parameters are others than before."""
        self.algorithm = algorithm_of(self.config)
        return self.algorithm

    def keep(self, arrival: Arrival, data: ByteArray) -> None:
        """Keep a peer's snapshot, all of it, to serve it to others."""
        layout = self._pool.layout()
        if layout is not None and arrival.can_keep:
            snapshot = Snapshot(arrival.version, arrival.standing, layout, data, is_finite=True)
            self._kept.keep(arrival.peer, snapshot)

    def _wanted(self, ask: Ask, layout: Layout, terms: FetchTerms) -> Wanted:
        is_deal, is_kept = ask.terms is not Terms.PULL, self.algorithm.keeps
        shard = WHOLE if is_deal or is_kept else shard_of(layout, terms.fraction, self._turn)
        self._turn += 1
        peers = self._book.names
        is_tagged = ask.peer is None and self._neighbours.is_tagged(peers)
        return Wanted(
            layout=layout,
            shard=shard,
            is_finite=terms.is_finite,
            terms=ask.terms,
            only=ask.peer,
            among=None if ask.peer else self._neighbours.among(peers, self.view.updates - 1),
            version=self._pool.version if is_tagged else 0,
            own_version=self._pool.version,
            keeps=is_kept,
        )

    def _fetched(self, order: FetchOrder, round_: _Round, merge: Merge) -> Arrival | None:
        before = self._time.now()
        self._pool.settle()
        found = order.take(order.deadline.remaining_s() + GRACE_S)
        if found is None or isinstance(found.source, SettledDeal):
            return None
        source = self._source(found, order)
        if source is None:
            return None
        waited_s = self._time.now() - before
        arrival = replace(
            self._arrival(source, round_.snapshot),
            waited_s=waited_s,
        )
        share = share_of(order.layout, arrival.nbytes, order.wanted.shard)
        return self._merge(arrival, merge, share)

    def _merge_deal(self, deal: Settled, round_: _Round | None, merge: Merge) -> Arrival | None:
        own = deal.own or (None if round_ is None else round_.published)
        factor = self._desk.factor(deal)
        arrival = self._arrival(settled(deal), None if own is None else own.snapshot, factor)
        if factor == 0.0:
            deal.release()
            return None
        return self._merge(arrival, merge)

    def _merge(self, arrival: Arrival, merge: Merge, share: float = 1.0) -> Arrival | None:
        """Merge parameters and clock; a shard moves the clock by its `share` of the parameters."""
        try:
            factor = merge(arrival)
        except BrokenFetchError:  # which the TxThread has recorded
            return None
        finally:
            arrival.release()
        if arrival.peer != self.name:
            self._book.record(arrival.peer, Outcome.FETCHED)
        own = self._standing
        clock = mixed_clock(own.clock, arrival.standing.clock, factor * share)
        self._standing = Standing(clock=clock, loss=own.loss)
        self._merges += factor > 0.0
        if self.config.quarantine_s > 0.0:
            self._fresh_merges.append((arrival.peer, factor))
        return replace(arrival, factor=factor)

    def _source(self, found: Found, order: FetchOrder, *, may_ask: bool = True) -> Source | None:
        """Return what is to be merged; `None` when it must not be, or is gone."""
        if isinstance(found.source, Incoming):
            return streamed(found.peer, found.source, order.deadline)
        if isinstance(found.source, SettledDeal):
            return None
        lease = self._pinned(found.source, order)
        if lease is None:
            if may_ask:
                return self._asked_again(found.peer, order)
            self._book.record(found.peer, Outcome.LOST, "its shared memory cannot be mapped")
            return None
        why_not = divergence(lease.snapshot, order)
        if why_not:
            lease.release()
            self._book.record(found.peer, Outcome.DIVERGED, why_not)
            return None
        return mapped(found.peer, lease, order)

    def _pinned(self, memory: PeerMemory, order: FetchOrder) -> Lease | None:
        """Pin the snapshot that is wanted, when the peer has published it."""
        wanted = order.wanted
        lease = memory.pin(wanted.layout, wanted.version)
        while lease is None and wanted.version and not order.deadline.expired():
            if not memory.is_alive(self._time.now()):
                break
            time.sleep(POLL_S)
            lease = memory.pin(wanted.layout, wanted.version)
        return lease

    def _asked_again(self, peer: str, order: FetchOrder) -> Source | None:
        """Ask a peer in whose memory there is nothing for this node any more: it tells why."""
        self._book.share(peer, None)
        again = order.again(peer)
        self._threads.tx.order(again)
        found = again.take(again.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._source(found, again, may_ask=False)

    def _arrival(
        self, source: Source, published: Snapshot | None, factor: float | None = None
    ) -> Arrival:
        own, peer = self._standing, source.standing
        if factor is None:
            factor = merge_factor(
                self._method, self._options, own, peer, self.config.divergence_threshold
            )
        return Arrival(
            **vars(source),
            factor=factor,
            published=published,
            staleness=own.clock - peer.clock,
        )

    def _end_round(self) -> None:
        round_, self._round = self._round, None
        if round_ is not None:
            round_.end()

    # What is known of others

    def _spread_news(self) -> None:
        """Trade news with one peer at random, if there was no time for it lately."""
        now, leader = self._time.now(), self._newsroom.leader(of_all=True)
        if leader is not None:
            self._newsroom.note_leader(leader)
        if now - self._told_at < NEWS_EVERY_S:
            return
        self._told_at = now
        if self._pool.shared is not None:
            self._pool.shared.tell(self._newsroom.packed(NEWS_BYTES))
        memory = self._book.any_memory(self._peer_rng)
        if memory is not None:
            self._newsroom.hear_packed(memory.news())
        if memory is None or self._book.has_unmapped:
            self._threads.tx.order(PassOnNews())

    def _measured(self, loss: float | None) -> None:
        """Take the loss of an update, once; it was computed before this update's merges."""
        self._has_measured = loss is not None
        if not self._chooses_by_other_loss:
            self._newsroom.measured(loss)
        if self.config.quarantine_s > 0.0:
            now = self._time.now()
            text = self._quarantine.measured(loss, now, len(self._book.names))
            if text:
                log.warning("%s: %s", self.name, text)
            self._book.quarantine(self._quarantine.quarantined(now))

    def _blame_later(self) -> None:
        """The next loss will tell what these merges have done."""
        for peer, factor in self._fresh_merges:
            self._quarantine.merged(peer, factor)
        self._fresh_merges.clear()

    # The peers

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers in view."""
        return self._book.names

    def add_peer(self, name: str, host: str, port: int) -> None:
        """Take a peer into view; no effect when it already is.

        Raises:
            UserError: the name is this node's own or known at another address, or the name, host
                or port is impossible.
        """
        self._check_open()
        self._connect(peer_config(name, host, port))

    def _connect(self, peer: NodeConfig) -> None:
        endpoint = peer.connect_endpoint
        if self._book.add(peer.name, endpoint):
            settings = channel_settings(self.config, self.name, peer.name)
            self._threads.tx.order(AddPeer(peer.name, endpoint, settings))

    def remove_peer(self, name: str) -> None:
        """Drop a peer from view.

        Raises:
            UnknownNameError: no such peer.
        """
        self._check_open()
        self._book.remove(name)
        self._desk.gone(name)
        self._newsroom.forget(name)
        self._threads.tx.order(RemovePeer(name))

    # Life

    def report(self) -> JsonObject:
        """Describe the node in plain data, for `dpwa status`."""
        standing = self._standing
        diverged = standing.loss is not None and math.isinf(standing.loss)
        return {
            "name": self.name,
            "pid": os.getpid(),
            "dpwa": dpwa.__version__,
            "protocol": PROTOCOL_VERSION,
            "seed": self.seed,
            "uptime_s": self._time.now() - self._started,
            "clock": standing.clock,
            "loss": None if diverged else standing.loss,
            "diverged": diverged,
            "version": self._pool.version,
            "merges": self._merges,
            "rounds_skipped": self._pool.skipped,
            "memory": {
                **self._pool.report(),
                **self._threads.tx.memory_report(),
                "served_held_bytes": self._snapshots.held_bytes,
            },
            "snapshots_served": self._snapshots.served,
            "bytes_sent": self._threads.rx.bytes_sent,
            "bytes_received": self._threads.tx.bytes_received,
            "bad_messages": self._threads.rx.bad_messages,
            "late_answers": self._threads.tx.late_answers,
            "algorithm": self.config.algorithm,
            "news": self._newsroom.report(),
            "deals": self._desk.report(),
            "kept_bytes": self._kept.nbytes,
            "peers": self._book.report(),
        }

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return not self._close_all.alive

    def close(self) -> None:
        """Stop serving and fetching; idempotent, takes a few seconds at the very most."""
        self._close_all()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"node {self.name!r} is closed")


def _called(report: weakref.WeakMethod[Callable[[], JsonObject]]) -> JsonObject:
    method = report()
    return {} if method is None else method()


def _close(threads: NodeThreads, desk: DealDesk, pool: SnapshotPool) -> None:
    try:
        threads.close()
    finally:  # a second Ctrl-C must not leave shared memory behind
        desk.close()
        pool.close()
