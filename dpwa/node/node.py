"""Node: a node, with its pool of snapshots, its peers and its two threads.

The training thread calls `update_send` and `update_wait`. It never uses a socket, and the network
threads never use the model.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import dpwa
from dpwa.config import Config, peer_config
from dpwa.data.layout import Layout
from dpwa.errors import AddressError, ClosedError
from dpwa.lifecycle import Closeable, finalize, require_own_process, weakly
from dpwa.node.assembly import channel_settings
from dpwa.node.context import NodeContext
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.finish import Finish, FinishListener, FinishService
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.name_clashes import IdentityService
from dpwa.node.own_address import OwnAddress, warn_if_hidden, warn_if_open
from dpwa.node.peers import PeerTable
from dpwa.node.report import SECTIONS, GossipReport, NodeReport, installed
from dpwa.node.serving.rx_thread import RxThread
from dpwa.node.serving.service import Listener, Service
from dpwa.node.serving.services import GoodbyeService, NewsService, StatusService
from dpwa.node.serving.snapshot_service import SnapshotService
from dpwa.node.serving.upload import Upload
from dpwa.node.settings import SettingsService
from dpwa.node.threads import NodeThreads
from dpwa.runtime import SYSTEM, Runtime
from dpwa.transport.link import LinkState
from dpwa.types import JsonObject
from dpwa.wire.limits import INCARNATION_BYTES, PROTOCOL_VERSION

if TYPE_CHECKING:
    from dpwa.transport.keyring import Keyring


log = logging.getLogger("dpwa.node")

FORMAT = "%(asctime)s %(levelname)s dpwa: %(message)s"


class _UntilSetUp(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log records to standard error until the program has added its own handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger("dpwa").handlers == [self] and not logging.getLogger().handlers:
            self.setStream(sys.stderr)  # the program may have replaced it
            super().emit(record)


_handler = _UntilSetUp()
_handler.setFormatter(logging.Formatter(FORMAT))


def configure_logging(level: str | None) -> None:
    """Show log messages, and set the level of the `dpwa` logger if `level` is given."""
    logger = logging.getLogger("dpwa")
    logger.addHandler(_handler)  # a second node adds no second handler
    if level is not None:
        logger.setLevel(level.upper())


class Node(Closeable):
    """A node of the configuration, which listens as soon as it is created. Call `close` after use.

    Raises `UnknownNameError` if the configuration has no such node, and `AddressError` if it cannot
    listen at its address.
    """

    def __init__(self, name: str, config: Config, runtime: Runtime = SYSTEM) -> None:
        if runtime is SYSTEM:  # a simulated node must not change the logging of the process
            is_set = "log_level" in config.model_fields_set
            configure_logging(config.log_level if is_set else None)
        self.name = name
        self.config = config
        self.runtime = runtime
        drawn = int.from_bytes(runtime.token_bytes(4), "big")
        incarnation = runtime.token_bytes(INCARNATION_BYTES)
        self.seed = drawn if config.seed is None else config.seed
        self._owner = os.getpid()
        self._started = runtime.now()
        self._host = socket.gethostname()
        # Whether this node knows all peers of which it was told when it joined, and whether all
        # peers that it can expect have arrived. The membership sets both functions.
        self.are_known: Callable[[], bool] = lambda: True
        self.have_come: Callable[[], bool] = lambda: True
        self._parts: dict[str, weakref.WeakMethod[Callable[[], Any]]] = {}
        config.require(name)
        self.check_open = _check_of(self)
        self._context = NodeContext.from_config(name, config, self.seed, runtime)
        try:
            own = OwnAddress.from_config(config, name)
            self._threads = NodeThreads(own.listen, self._context)
            # Set before the threads start, because a peer may ask at once for the incarnation.
            self._context.peer_table.own_process = incarnation, ""
            try:
                self._open()
            except BaseException:
                self._threads.close()
                raise
        except AddressError as error:
            self._context.close()
            told = f"node {name!r} {error.text}"
            is_taken = error.message_code == "DPWA-E051"
            told += " [DPWA-E224]" if is_taken else " [DPWA-E052]"
            raise AddressError(told) from None
        except BaseException:
            self._context.close()
            raise
        self.endpoint = own.endpoint(self._threads.rx.endpoint)
        self._context.peer_table.own_process = incarnation, self.endpoint
        # The threads hold only weak references to the node. A node that is not closed is closed
        # when it is garbage-collected, or at the end of the program.
        self._close_all = finalize(
            self, _close, self._threads, self._context, weakly(self.note_end)
        )
        self.connect_peers({peer.name: peer.connect_endpoint for peer in config.peers_of(name)})
        warn_if_open(config, name, self._threads.rx.endpoint)
        warn_if_hidden(config, name, self._threads.rx.endpoint)
        log.info("%s: listening on %s, seed %d", name, self._threads.rx.endpoint, self.seed)

    def _open(self) -> None:
        context, tx = self._context, self._threads.tx
        services: list[Service] = []
        if context.transactions is None:
            self.rounds = GossipRounds(context, tx, self.check_open)
        else:
            from dpwa.node.transactions.service import add_transactions

            self.rounds, service = add_transactions(
                context, context.transactions, tx, self.check_open
            )
            services.append(service)
        self.finish = Finish(context, self.rounds, tx)
        self._snapshots, self._identity = SnapshotService(context), IdentityService(context)

        def left(peer: str, reason: str) -> None:
            context.peer_table.peer_left(peer, reason)
            tx.peer_left(peer)

        services += [
            self._snapshots,
            NewsService(context),
            SettingsService(context.settings),
            StatusService(self.weak_condition, self.runtime),
            GoodbyeService(context.name, left),
            self._identity,
            FinishService(self.finish.endings),
        ]
        self._threads.open(services)
        tx.attach(FinishListener(self.finish.endings, tx.send_message))

    @property
    def clock(self) -> float:
        """The training clock. An update adds 1, and a merge interpolates it like the parameters."""
        self.check_process()
        return self.rounds.progress.clock

    @property
    def version(self) -> int:
        """Version of the newest published snapshot, or 0 if there is none. No merge changes it."""
        return self._context.pool.version

    @property
    def snapshots_served(self) -> int:
        return self._snapshots.served

    # The peers

    @property
    def peers(self) -> tuple[str, ...]:
        self.check_process()
        return self._context.peer_table.names

    @property
    def links(self) -> dict[str, LinkState]:
        return self._threads.tx.states_of(self._context.peer_table.names)

    @property
    def names(self) -> Callable[[], tuple[str, ...]]:
        """A function for the names of this node and its peers. It does not keep the node alive."""
        name, peer_table = self.name, self._context.peer_table
        return lambda: (name, *peer_table.names)

    def rng(self, purpose: str) -> random.Random:
        """Return a separate random generator for each purpose, seeded by the configuration."""
        return self._context.rng(purpose)

    def add_peer(self, name: str, host: str, port: int) -> None:
        """Add a peer. This has no effect if this node already knows the peer.

        Raises `UserError` if the name is invalid, this node's own, or known at a different
        address.
        """
        self.check_open()
        self.connect_peers({name: peer_config(name, host, port).connect_endpoint})

    def connect_peers(self, endpoints: Mapping[str, str]) -> None:
        """Add peers by name and endpoint. Peers that this node already knows are skipped.

        Raises `UserError` if a name is this node's own or known at a different endpoint.
        """
        new = self._context.peer_table.add_peers(endpoints)
        self._context.leader_table.welcome(new)
        settings_of = channel_settings(self.config, self.name)
        channels = [PeerChannel(name, endpoints[name], settings_of(name)) for name in new]
        self._threads.tx.add_peers(channels)

    def remove_peer(self, name: str) -> None:
        self.check_open()
        self._context.peer_table.remove(name)
        self._context.forget_peer(name)
        self.rounds.figures.forget_peer(name)
        self._threads.tx.remove_peer(name)

    # Services and parts of the report

    def attach(self, service: Service, listener: Listener) -> None:
        self.check_open()
        self._threads.rx.register(service)
        self._threads.tx.attach(listener)

    def describe(self, part: str, describe: Callable[[], Any]) -> None:
        """Register a method that returns one part of `condition`. The reference to it is weak."""
        self._parts[part] = weakref.WeakMethod(describe)

    @property
    def weak_condition(self) -> Callable[[], NodeReport | None]:
        """A function that calls `condition`, and does not keep the node alive."""
        condition = weakref.WeakMethod(self.condition)
        return lambda: _called(condition)

    @property
    def upload(self) -> Upload:
        """The limit on the send rate of services. The object does not keep the node alive."""
        return self._context.upload

    @property
    def keyring(self) -> Keyring | None:
        """The keys of this node and its peers. `None` with `security: none`."""
        return self._threads.authorizer.keyring

    @property
    def tx(self) -> TxThread:
        """The thread that sends messages to peers. The object does not keep the node alive."""
        return self._threads.tx

    @property
    def rx(self) -> RxThread:
        """The thread that answers peers. The object does not keep the node alive."""
        return self._threads.rx

    @property
    def traffic(self) -> PeerTable:
        """The counts of bytes for each peer. The object does not keep the node alive."""
        return self._context.peer_table

    # Status and end

    def described(self) -> str:
        if not self.is_own:
            return f"{self.name!r} at {self.endpoint}, of process {self._owner}, not of this fork"
        if self.closed:
            return f"{self.name!r} at {self.endpoint}, closed"
        links = self.links.values()
        alive = sum(state is LinkState.UP for state in links)
        return (
            f"{self.name!r} at {self.endpoint}, clock {self.clock:.4g}, "
            f"{alive} of {len(links)} peers connected"
        )

    def report(self) -> JsonObject:
        """Describe the node in plain data, as `dpwa status --json` prints it."""
        return self.condition().plain()

    def condition(self) -> NodeReport:
        """Describe the current state of the node."""
        progress, context, threads = self.rounds.progress, self._context, self._threads
        figures, config = self.rounds.figures, self.config
        diverged = progress.loss == math.inf or context.pool.is_finite is False
        exchanged, pace = context.peer_table.exchanged_bytes, self._part("pace")
        peers = context.peer_table.report(figures.report_of)
        return NodeReport(
            name=self.name,
            endpoint=self.endpoint,
            time=self.runtime.wall_time(),
            host=self._host,
            pid=os.getpid(),
            dpwa=dpwa.__version__,
            protocol=PROTOCOL_VERSION,
            versions=installed(),
            seed=self.seed,
            uptime_s=self.runtime.now() - self._started,
            clock=progress.clock,
            loss=None if diverged else progress.loss,
            diverged=diverged,
            version=context.pool.version,
            merges=self.rounds.merges,
            rounds_skipped=context.pool.skipped,
            memory={
                **context.pool.report(),
                **threads.tx.memory_report(),
            },
            snapshots_served=self.snapshots_served,
            bytes_sent=threads.rx.bytes_sent + exchanged["sent"],
            bytes_received=exchanged["received"],
            bad_messages=threads.rx.bad_messages,
            refused={"malformed": threads.rx.bad_messages, **threads.rx.admission.report()},
            late_answers=threads.tx.late_answers,
            handshakes_refused=threads.authorizer.report(),
            clashes=self._identity.report(),
            connections=threads.authorizer.connections(),
            algorithm=config.algorithm,
            settings=context.settings.own,
            topology=config.topology,
            group=config.group_of(self.name),
            model=self._model(),
            ending=self.finish.report(),
            news=context.leader_table.report(),
            transactions={} if context.transactions is None else context.transactions.report(),
            gossip=GossipReport(
                **figures.report(),
                **context.peer_table.fetch_report(),
                mapped_bytes=exchanged["mapped"],
                taken_bytes=exchanged["taken"],
            ),
            peers=peers if pace is None else tuple(map(pace.of_peer, peers)),
            membership=self._part("membership"),
            state=self._part("state"),
            sections={name: told for name in SECTIONS if (told := self._part(name)) is not None},
            pace=pace,
        )

    def _model(self) -> JsonObject | None:
        """Describe the last published snapshot, and the adapter's module if there is one."""
        layout = self._context.pool.layout()
        published = {} if layout is None else _described(layout)
        return {**published, **(self._part("model") or {})} or None

    def _part(self, name: str) -> Any:
        describe = self._parts.get(name)
        return None if describe is None else _called(describe)

    @property
    def closed(self) -> bool:
        return not self._close_all.alive

    def note_end(self, error: type[BaseException] | None) -> None:
        """Note that the node ends now, and with which error, and report this to its peers."""
        self._threads.tx.reason = self.finish.note_end("" if error is None else error.__name__)
        self._identity.is_over = True

    def close(self) -> None:
        """Stop serving and fetching, within a few seconds. A second call does nothing.

        In a forked child it does nothing, because the node belongs to the parent.
        """
        if self.is_own:
            self._close_all()

    @property
    def is_own(self) -> bool:
        return os.getpid() == self._owner

    def check_process(self) -> None:
        """Raise a `ForkedError` if this process is a forked child."""
        require_own_process(self._owner, self.name)


def _check_of(node: Node) -> Callable[[], None]:
    """Return a function that raises `ClosedError` if the node is closed. It keeps no node alive."""
    reference = weakref.ref(node)

    def check() -> None:
        node = reference()
        if node is None:
            return
        if os.getpid() != node._owner:
            node.check_process()
        if not node._close_all.alive:
            raise ClosedError(f"node {node.name!r} is closed [DPWA-E058]")

    return check


def _described(layout: Layout) -> JsonObject:
    return {"fingerprint": layout.fingerprint.hex(), "tensors": len(layout.tensors)}


def _called(reference: weakref.WeakMethod[Callable[[], Any]]) -> Any:
    method = reference()
    return None if method is None else method()


def _close(threads: NodeThreads, context: NodeContext, leave: Callable[..., Any]) -> None:
    with context.runtime.uninterrupted():
        try:
            leave(sys.exc_info()[0] or getattr(sys, "last_type", None))
            threads.close()
        finally:
            context.close()
