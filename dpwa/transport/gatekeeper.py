"""The thread at the gate: answers ZeroMQ, which asks about keys, and keeps the keys up to date.

ZAP (https://rfc.zeromq.org/spec/27): whenever somebody has proved to own a key, ZeroMQ asks at
`inproc://zeromq.zap.01` of the context whether it may connect, and waits for the answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from dpwa.clock import Clock
from dpwa.transport.gate import MONITOR_ENDPOINT, CurveGate
from dpwa.transport.mailbox import Mailbox
from dpwa.transport.sockets import Context, Socket

log = logging.getLogger("dpwa.gate")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
RELOAD_EVERY_S = 1.0
EVENTS_PER_TURN = 64


class Gatekeeper(threading.Thread):
    """Serves one gate until it is stopped, which must be after the sockets that ask are closed.

    Args:
        name: of the node.
        context: of the sockets that ask.
        gate: what decides.
        clock: what the time is taken from.
        changed: called by the thread whenever other keys are allowed than before.
    """

    def __init__(
        self,
        name: str,
        context: Context,
        gate: CurveGate,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(name=f"dpwa-gate-{name}", daemon=True)
        self._gate = gate
        self._clock = clock
        self._changed = changed
        self._is_stopping = False
        self._stop_signal: Mailbox[None] = Mailbox(context)
        self._zap: Socket = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind(ZAP_ENDPOINT)
        # Connected before there is anything to hear: ZeroMQ's own thread would wait for a listener.
        self._monitor: Socket = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.connect(MONITOR_ENDPOINT)

    def run(self) -> None:
        """Own the sockets from here to the end."""
        poller = zmq.Poller()
        for socket in (self._zap, self._monitor, self._stop_signal.receiver):
            poller.register(socket, zmq.POLLIN)
        looked_at = self._clock.now()
        while not self._is_stopping:
            ready = dict(poller.poll(int(RELOAD_EVERY_S * 1000)))
            try:
                self._answer_all(ready)
                if self._clock.now() - looked_at >= RELOAD_EVERY_S:
                    looked_at = self._clock.now()
                    self._reload()
            except Exception:
                log.exception("the gate has failed for an unforeseen reason; it goes on")

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self._is_stopping = True
        self._stop_signal.put(None)
        self.join(timeout_s)
        if self.is_alive():
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Close the sockets of a thread that was never started, or has ended."""
        self._zap.close(0)
        self._monitor.close(0)
        self._stop_signal.close()

    def _reload(self) -> None:
        if self._gate.keyring.reload():
            self._changed()

    def _answer_all(self, ready: dict[object, int]) -> None:
        if self._zap in ready:
            self._answer(self._zap.recv_multipart())
        if self._monitor in ready:
            for _ in range(EVENTS_PER_TURN):
                if not self._monitor.poll(0):
                    return
                self._gate.count(recv_monitor_message(self._monitor)["event"])

    def _answer(self, frames: list[bytes]) -> None:
        """Answer one question; ZeroMQ itself asks, so its form is right."""
        to, empty, _version, request, _domain, address, _routing, _mechanism, key = frames
        public = z85.encode(key).decode()
        is_allowed = self._gate.judge(public, address.decode())
        verdict = [b"200", b"", public.encode()] if is_allowed else [b"400", b"", b""]
        self._zap.send_multipart([to, empty, ZAP_VERSION, request, *verdict, b""])
