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
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

import dpwa
from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config, NodeConfig, peer_config
from dpwa.data.layout import Layout
from dpwa.data.snapshot import ByteArray, Lease, Snapshot, SnapshotPool
from dpwa.errors import AddressError, ClosedError
from dpwa.lifecycle import Closeable
from dpwa.node.logs import configure_logging
from dpwa.node.peers import PeerBook
from dpwa.node.services import GoodbyeService, SnapshotService, StatusService
from dpwa.node.threads import NodeThreads
from dpwa.node.tx_thread import AddPeer, Fetched, FetchOrder, RemovePeer
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.transport.addresses import connect_endpoint, listen_endpoint
from dpwa.types import JsonObject, Standing
from dpwa.wire.limits import PROTOCOL_VERSION

log = logging.getLogger("dpwa.node")

GRACE_S = 0.02  # what `wait` grants the TxThread past the deadline to report its result


@dataclass(frozen=True)
class Arrival:
    """A peer's snapshot that is to be merged.

    Attributes:
        peer: the name of the peer.
        factor: the weight f to merge it with, from 0 to 1.
        snapshot: the peer's; its data is valid until the next `send`.
        published: this node's own snapshot of the same round, valid as long; `None` when it could
            not be published.
        staleness: by how many updates the peer's clock is behind this node's (negative: ahead).
        waited_s: seconds that `wait` spent waiting.
    """

    peer: str
    factor: float
    snapshot: Snapshot
    published: Snapshot | None
    staleness: float
    waited_s: float


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
        self._fetch_rng = random.Random(f"{self.seed}/{name}/fetch")
        self._standing = Standing(clock=0.0)
        self._round: _Round | None = None  # sent, not waited for yet
        self._merging: _Round | None = None  # waited for; what came may be used until the next send
        self._merges = 0
        self._pool = SnapshotPool()
        self._book = PeerBook(name, self._time)
        self._snapshots = SnapshotService(self._pool, self._time, 2 * config.timeout_ms / 1000)
        self._threads = NodeThreads(
            name,
            _listen_endpoint(own),
            self._book,
            random.Random(f"{self.seed}/{name}/peer"),
            self._time,
        )
        report = weakref.WeakMethod(self.report)
        try:
            self._threads.open(
                [
                    self._snapshots,
                    StatusService(lambda: _called(report)),
                    GoodbyeService(self._book.said_goodbye),
                ]
            )
        except AddressError as error:
            raise AddressError(f"node {name!r} {error}") from None
        # The threads know the node only weakly: one that is forgotten is closed when it is
        # collected, or at the end of the program.
        self._close_threads = weakref.finalize(self, self._threads.close)
        for peer in config.peers_of(name):
            self._connect(peer)
        log.info("%s: listening on %s, seed %d", name, self._threads.endpoint, self.seed)

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
        write: Callable[[ByteArray], None],
    ) -> None:
        """Publish a snapshot that `write` fills, and with the configured probability start a fetch.

        Never waits. When slow readers hold every slot of the pool, nothing is published this time.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_rounds()
        self._standing = Standing(clock=self._standing.clock + 1.0, loss=loss)
        lease = self._pool.publish(layout, nbytes, self._standing, write)
        deadline = Deadline(self._time, self.config.timeout_ms / 1000)
        round_ = _Round(FetchOrder(layout, deadline), lease)
        if self._fetch_rng.random() >= self.config.fetch_probability:
            round_.end()
            return
        self._round = round_
        self._threads.tx.order(round_.order)

    def wait(
        self, loss: float | None = None, is_finite: Callable[[Snapshot], bool] | None = None
    ) -> Arrival | None:
        """Wait for the fetch that the last `send` started; return what came, or `None`.

        Waits at most until `timeout_ms` after that `send`. The clock is merged here, the parameters
        by the caller. A peer that has diverged, by its loss or its parameters, is not merged.

        Args:
            loss: this node's at the moment of merging; `None` stands for the one passed to `send`.
            is_finite: tells whether all parameters of a snapshot are finite numbers.

        Raises:
            ClosedError: the node was closed.
            UserError: a rule of the user's own returned an impossible factor.
        """
        self._check_open()
        round_, self._round = self._round, None
        if round_ is None:
            return None
        self._merging = round_
        before = self._time.now()
        fetched = _result(round_.order)
        if fetched is None or self._refuses(fetched, is_finite):
            return None
        if loss is not None:
            self._standing = Standing(clock=self._standing.clock, loss=loss)
        return self._merged(fetched, round_, self._time.now() - before)

    def _refuses(self, fetched: Fetched, is_finite: Callable[[Snapshot], bool] | None) -> bool:
        """Tell whether a peer has diverged: one merge would carry what is not finite everywhere."""
        if fetched.snapshot.standing.loss == math.inf:
            self._book.record(fetched.peer, Outcome.DIVERGED, "its loss is not finite")
            return True
        if is_finite is not None and not is_finite(fetched.snapshot):
            self._book.record(fetched.peer, Outcome.DIVERGED, "its parameters are not finite")
            return True
        self._book.record(fetched.peer, Outcome.FETCHED)
        return False

    def _merged(self, fetched: Fetched, round_: _Round, waited_s: float) -> Arrival:
        own, peer = self._standing, fetched.snapshot.standing
        factor = merge_factor(
            self._method, self._options, own, peer, self.config.divergence_threshold
        )
        clock = mixed_clock(own.clock, peer.clock, factor)
        self._standing = Standing(clock=clock, loss=own.loss)
        self._merges += factor > 0.0
        return Arrival(
            peer=fetched.peer,
            factor=factor,
            snapshot=fetched.snapshot,
            published=None if round_.published is None else round_.published.snapshot,
            staleness=own.clock - peer.clock,
            waited_s=waited_s,
        )

    def _end_rounds(self) -> None:
        rounds = (self._round, self._merging)
        self._round = self._merging = None
        for round_ in rounds:
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
        endpoint = connect_endpoint(peer.host, peer.port)
        if self._book.add(peer.name, endpoint):
            self._threads.tx.order(AddPeer(peer.name, endpoint))

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
        return not self._close_threads.alive

    def close(self) -> None:
        """Stop serving and fetching; idempotent, takes a few seconds at the very most."""
        self._close_threads()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"node {self.name!r} is closed")


def _listen_endpoint(own: NodeConfig) -> str:
    try:
        return listen_endpoint(own.bind or own.host, own.port)
    except AddressError as error:
        raise AddressError(f"node {own.name!r} {error}") from None


def _called(report: weakref.WeakMethod[Callable[[], JsonObject]]) -> JsonObject:
    method = report()
    return {} if method is None else method()


def _result(order: FetchOrder) -> Fetched | None:
    try:
        return order.future.result(order.deadline.remaining_s() + GRACE_S)
    except FutureTimeoutError:
        return None
