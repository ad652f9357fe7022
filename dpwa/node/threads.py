"""The threads of a node and their ZeroMQ context: opened together, closed together."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dpwa.node.assembly import authorizer_of
from dpwa.node.context import NodeContext
from dpwa.node.fetching.commands import (
    Attach,
    Connect,
    Detach,
    RenewLinks,
    Tell,
    TickListeners,
)
from dpwa.node.fetching.connections import affordable
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.node_thread import NodeThread
from dpwa.node.serving.admission import AdmissionControl
from dpwa.node.serving.rx_thread import RxThread
from dpwa.node.serving.service import Listener, Service
from dpwa.runtime import NODE_NEEDS, SYSTEM, require_descriptors
from dpwa.transport.sockets import keep_freed_memory
from dpwa.types import Frame
from dpwa.wire.messages import Message

log = logging.getLogger("dpwa.node")

SOCKETS_PER_LINK = 3  # with both ends of its monitor
OTHER_SOCKETS = 256  # of calls and the RxThread
STOP_TIMEOUT_S = 3.0  # more than a farewell takes, also on a busy machine


class NodeHandle:
    """Lets what stands on a node use its threads; every method may be called from any thread."""

    def __init__(self, rx: RxThread, tx: TxThread) -> None:
        self._rx = rx
        self._tx = tx

    @property
    def source(self) -> str:
        """Where the request is from that a service is answering; see `ReceivedMessage`."""
        if self._rx.endpoint.startswith("ipc://"):
            return "localhost"  # not every system tells
        received = self._rx.received
        return "" if received is None else received.source

    def tell(self, peer: str, message: Message, payload: Frame | None = None) -> None:
        """Send a message, connecting if needed; returns at once.

        A message to a peer that is not there is lost.
        """
        self._tx.submit(Tell(peer, message, payload, connects=True))

    def tell_if_connected(self, peer: str, message: Message, payload: Frame | None = None) -> None:
        """Returns at once."""
        self._tx.submit(Tell(peer, message, payload))

    def connect(self, *, needs_all: bool = False) -> None:
        """Connect to the longest idle peers, as many as there may be; returns at once.

        `needs_all`: all of them are needed from now on, and the connections are to stay.
        """
        self._tx.submit(Connect(needs_all))

    def reaches(self, peer: str) -> bool:
        """Tell whether a peer is connected, or would be if needed."""
        return self._tx.reaches(peer)

    def wake(self) -> None:
        """Have the services look at once whether something has become due."""
        self._rx.wake()

    def attach(self, listener: Listener) -> None:
        self._tx.submit(Attach(listener))

    def detach(self, listener: Listener) -> None:
        self._tx.submit(Detach(listener))

    def tick_listeners(self) -> None:
        """Have the listeners look at once whether something has become due."""
        self._tx.submit(TickListeners())

    @contextmanager
    def unthrottled(self) -> Iterator[None]:
        """Serve peers without a limit while the trainer waits for them."""
        admission = self._rx.admission
        is_paused = admission.paused_s()
        admission.begin_unthrottled()
        try:
            if is_paused:
                self.wake()
            yield
        finally:
            admission.end_unthrottled()


class NodeThreads:
    """Owns the RxThread, the TxThread and the context of their sockets.

    Raises `UserError` if too few descriptors are left, or as `authorizer_of` does.
    """

    def __init__(self, endpoint: str, context: NodeContext) -> None:
        self.endpoint = endpoint
        self._name = context.name
        keep_freed_memory()
        self.authorizer = authorizer_of(context.config, context.name)
        self._runtime = runtime = context.runtime
        if runtime is SYSTEM:
            require_descriptors(NODE_NEEDS)
        self._zmq_context = runtime.zmq_context()
        admission = AdmissionControl(self.authorizer, context.config.limits, runtime)
        most = affordable(context.config.connections, context.name)
        self._zmq_context.max_sockets = max(1023, SOCKETS_PER_LINK * most + OTHER_SOCKETS)
        context.peer_table.most_connected = most
        self.tx = tx = TxThread(self._zmq_context, context, self.authorizer.keyring, most)
        self.rx = RxThread(
            context.name,
            self._zmq_context,
            endpoint,
            runtime,
            admission,
            keys_changed=lambda: tx.submit(RenewLinks()),
            most_clients=most,
        )
        self.node_handle = NodeHandle(self.rx, self.tx)

    def open(self, services: Iterable[Service]) -> None:
        """Register the services and start the threads.

        Raises `AddressError`, with nothing left running, if the endpoint cannot be listened on.
        """
        for service in services:
            self.rx.register(service)
        try:
            self.tx.start()
            self.rx.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads and free the sockets; bounded in time."""
        tx_stopped = self._stop(self.tx)
        if self._stop(self.rx) and tx_stopped:
            self._zmq_context.term()

    def _stop(self, thread: NodeThread) -> bool:
        if thread.is_current:  # it has dropped the last reference to the node
            thread.end()
            return False
        if not thread.was_started:  # there was no room for another thread
            thread.discard()
            return True
        if thread.stop(STOP_TIMEOUT_S):
            return True
        log.error("thread %s did not stop within %g s [DPWA-W020]", thread.name, STOP_TIMEOUT_S)
        return False
