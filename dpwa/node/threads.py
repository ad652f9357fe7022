"""The threads of a node and their ZeroMQ context: opened together, closed together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import zmq

from dpwa.node.assembly import gate_of
from dpwa.node.intake import Intake
from dpwa.node.parts import Parts
from dpwa.node.rx_thread import RxThread, Service
from dpwa.node.tx_thread import RenewLinks, Tell, TxThread
from dpwa.transport.door import Door
from dpwa.transport.gatekeeper import Gatekeeper
from dpwa.transport.sockets import keep_freed_memory
from dpwa.types import Frame
from dpwa.wire.messages import Message

log = logging.getLogger("dpwa.node")

STOP_TIMEOUT_S = 3.0  # more than a farewell takes, also on a busy machine


class Courier:
    """Lets what stands on a node use its threads; every method may be called from any thread."""

    def __init__(self, rx: RxThread, tx: TxThread) -> None:
        self._rx = rx
        self._tx = tx

    def tell(self, peer: str, message: Message, payload: Frame | None = None) -> None:
        """Send a message to a peer, if there is a connection; returns at once."""
        self._tx.order(Tell(peer, message, payload))

    def nudge(self) -> None:
        """Have the services look at once whether something has become due."""
        self._rx.nudge()

    @contextmanager
    def lull(self) -> Iterator[None]:
        """Serve peers without a limit while the trainer waits for them."""
        intake = self._rx.intake
        is_paused = intake.is_paused
        intake.begin_lull()
        try:
            if is_paused:
                self.nudge()
            yield
        finally:
            intake.end_lull()


class NodeThreads:
    """Owns the RxThread, the TxThread, the gatekeeper and the context in which their sockets live.

    Raises:
        UserError: `security: curve` without CURVE or the node's key, or with files that others can
            read or write.
    """

    def __init__(self, endpoint: str, parts: Parts) -> None:
        self.endpoint = endpoint
        keep_freed_memory()
        self.gate = gate_of(parts.config, parts.name)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        intake = Intake(self.gate, parts.config.limits)
        self.rx = RxThread(parts.name, self._context, endpoint, parts.clock, intake)
        self.tx = TxThread(self._context, parts, self.gate.keyring)
        self.door = Door(parts.config.limits.handshakes_per_s)
        self._gatekeeper = self._make_gatekeeper(parts)
        self.courier = Courier(self.rx, self.tx)

    def _make_gatekeeper(self, parts: Parts) -> Gatekeeper:
        tx, keepers = self.tx, (self.gate, self.door)
        return Gatekeeper(
            parts.name, self._context, keepers, parts.clock, lambda: tx.order(RenewLinks())
        )

    def open(self, services: Iterable[Service]) -> None:
        """Register the services and start the threads.

        Raises:
            AddressError: the endpoint cannot be listened on; nothing is left running.
        """
        for service in services:
            self.rx.register(service)
        try:
            self._gatekeeper.start()
            self.tx.start()
            self.rx.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads and free the sockets; bounded in time."""
        tx_stopped = self._stop(self.tx)
        # The gatekeeper last: ZeroMQ's own thread would wait for it for ever.
        served_out = self._stop(self.rx) and self._stop(self._gatekeeper)
        if tx_stopped and served_out:
            self._context.term()

    def _stop(self, thread: RxThread | TxThread | Gatekeeper) -> bool:
        if thread is threading.current_thread():
            return False
        if thread.ident is None:  # there was no room for another thread
            thread.discard()
            return True
        if thread.stop(STOP_TIMEOUT_S):
            return True
        log.error("thread %s did not stop within %g s", thread.name, STOP_TIMEOUT_S)
        return False
