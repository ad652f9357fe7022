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
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import dpwa
from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config, NodeConfig, peer_config
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Copy, Lease, SnapshotPool
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
    streamed,
)
from dpwa.node.assembly import channel_settings, codec_of, shared_memory_of
from dpwa.node.fetch_order import FetchOrder, Found
from dpwa.node.incoming import BrokenFetchError, Incoming
from dpwa.node.logs import configure_logging
from dpwa.node.peers import PeerBook
from dpwa.node.services import GoodbyeService, SnapshotService, StatusService
from dpwa.node.threads import NodeThreads
from dpwa.node.tx_thread import AddPeer, RemovePeer
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.transport.addresses import resolved
from dpwa.types import JsonObject, Standing
from dpwa.wire.fetching import share_of
from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.shards import shard_of

log = logging.getLogger("dpwa.node")

GRACE_S = 0.02  # what `wait` grants the TxThread past the deadline to report its result


@dataclass(frozen=True)
class _Round:
    """What one `send` left to be waited for: the fetch, and its own snapshot."""

    order: FetchOrder
    published: Lease | None

    def end(self) -> None:
        if self.published is not None:
            self.published.release()


class Node(Closeable):
    """A node of the configuration, listening as soon as it is made; close it when done.

    Raises:
        UnknownNameError: the configuration has no node of this name.
        AddressError: its address cannot be listened on.
    """

    def __init__(self, name: str, config: Config, clock: Clock | None = None) -> None:
        own = config.node(name)
        configure_logging(config.log_level)
        self.name = name
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        self._time = clock or SystemClock()
        self._started = self._time.now()
        self._method = interpolation(config.interpolation)
        self._options = config.rule_options(config.interpolation)
        self._codecs = partial(codec_of, config)
        self._fetch_rng = random.Random(f"{self.seed}/{name}/fetch")
        self._peer_rng = random.Random(f"{self.seed}/{name}/peer")
        self._standing = Standing(clock=0.0)
        self._round: _Round | None = None  # sent, not waited for yet
        self._turn = 0  # which shard of the parameters is next
        self._merges = 0
        self._book = PeerBook(name, self._time)
        longest_s = 2 * config.timeout_ms / 1000
        self._pool = SnapshotPool(self._time, longest_s, config.slots, shared_memory_of(config))
        self._snapshots = SnapshotService(
            self._pool, self._time, longest_s, self._codecs, config.topk.resync_every
        )
        try:
            self._threads = NodeThreads(
                name,
                resolved(own.listen_endpoint),
                self._book,
                random.Random(f"{self.seed}/{name}/other"),
                self._time,
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
        self._close_all = weakref.finalize(self, _close, self._threads, self._pool)
        for peer in config.peers_of(name):
            self._connect(peer)
        log.info("%s: listening on %s, seed %d", name, self._threads.endpoint, self.seed)

    def _open(self) -> None:
        report = weakref.WeakMethod(self.report)
        self._threads.open(
            [
                self._snapshots,
                StatusService(lambda: _called(report)),
                GoodbyeService(self._book.said_goodbye),
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

    def send(
        self,
        layout: Layout,
        nbytes: int,
        loss: float | None,
        write: Callable[[ByteArray], Copy],
        terms: FetchTerms = WHOLE_SNAPSHOT,
    ) -> None:
        """Publish a snapshot that `write` fills, and with the configured probability start a fetch.

        Never waits. When slow readers hold every slot of the pool, nothing is published this time.

        Args:
            layout: what the bytes mean.
            nbytes: how many there are.
            loss: of this node now; `None` when it has not measured one.
            write: fills the snapshot, shape `(nbytes,)`, or starts to.
            terms: of the fetch.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_round()
        self._standing = Standing(clock=self._standing.clock + 1.0, loss=loss)
        lease = self._pool.publish(layout, nbytes, self._standing, write)
        deadline = Deadline(self._time, self.config.timeout_ms / 1000)
        if self._fetch_rng.random() >= self.config.fetch_probability:
            if lease is not None:
                lease.release()
            return
        shard = shard_of(layout, terms.fraction, self._turn)
        self._turn += 1
        order = FetchOrder(layout, shard, deadline, terms.is_finite)
        self._round = _Round(order, lease)
        order.first = self._book.choose(self._peer_rng)
        memory = None if order.first is None else self._book.memory_of(order.first)
        if order.first is not None and memory is not None:
            order.offer(Found(order.first, memory))  # it lies there: nobody needs to be asked
        else:
            self._threads.tx.order(order)

    def wait(self, loss: float | None, merge: Merge) -> Arrival | None:
        """Wait for the fetch that the last `send` started, and merge what comes.

        Waits at most until `timeout_ms` after that `send`. The clock is merged here, the parameters
        by `merge`, on this thread. A peer that has diverged, by its loss or its parameters, is not
        merged.

        Args:
            loss: this node's at the moment of merging; `None` stands for the one passed to `send`.
            merge: merges an arrival.

        Returns:
            What was merged, or `None` when nothing was, whatever the reason.

        Raises:
            ClosedError: the node was closed.
            UserError: a rule of the user's own returned an impossible factor.
        """
        self._check_open()
        if loss is not None:
            self._standing = Standing(clock=self._standing.clock, loss=loss)
        round_ = self._round
        if round_ is None:
            return None
        before = self._time.now()
        try:
            self._pool.settle()
            found = round_.order.take(round_.order.deadline.remaining_s() + GRACE_S)
            if found is None:
                return None
            return self._receive(found, round_, merge, self._time.now() - before)
        finally:
            self._end_round()

    def skip(self) -> None:
        """Do without the fetch that the last `send` started."""
        self._end_round()

    def _receive(
        self, found: Found, round_: _Round, merge: Merge, waited_s: float
    ) -> Arrival | None:
        source = self._source(found, round_.order)
        if source is None:
            return None
        try:
            arrival = self._arrival(source, round_, waited_s)
            merge(arrival)
        except BrokenFetchError:  # which the TxThread has recorded
            return None
        finally:
            source.release()
        self._merged(arrival, round_.order)
        return arrival

    def _source(self, found: Found, order: FetchOrder, *, may_ask: bool = True) -> Source | None:
        """Return what is to be merged; `None` when it must not be, or is gone."""
        if isinstance(found.source, Incoming):
            return streamed(found.peer, found.source, order.deadline)
        lease = found.source.pin(order.layout)
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

    def _asked_again(self, peer: str, order: FetchOrder) -> Source | None:
        """Ask a peer in whose memory there is nothing for this node any more: it tells why."""
        self._book.share(peer, None)
        again = order.again(peer)
        self._threads.tx.order(again)
        found = again.take(again.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._source(found, again, may_ask=False)

    def _arrival(self, source: Source, round_: _Round, waited_s: float) -> Arrival:
        own, peer = self._standing, source.standing
        factor = merge_factor(
            self._method, self._options, own, peer, self.config.divergence_threshold
        )
        return Arrival(
            **vars(source),
            factor=factor,
            published=None if round_.published is None else round_.published.snapshot,
            staleness=own.clock - peer.clock,
            waited_s=waited_s,
        )

    def _merged(self, arrival: Arrival, order: FetchOrder) -> None:
        self._book.record(arrival.peer, Outcome.FETCHED)
        own = self._standing
        # A shard moves its share of the parameters, and the clock by as much.
        factor = arrival.factor * share_of(order.layout, arrival.nbytes, order.shard)
        clock = mixed_clock(own.clock, arrival.standing.clock, factor)
        self._standing = Standing(clock=clock, loss=own.loss)
        self._merges += arrival.factor > 0.0

    def _end_round(self) -> None:
        round_, self._round = self._round, None
        if round_ is not None:
            round_.end()

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


def _close(threads: NodeThreads, pool: SnapshotPool) -> None:
    try:
        threads.close()
    finally:  # a second Ctrl-C must not leave shared memory behind
        pool.close()
