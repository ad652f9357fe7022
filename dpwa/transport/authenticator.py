"""The thread at the gate: counts who comes, answers ZeroMQ about keys, and keeps those up to date.

ZAP (https://rfc.zeromq.org/spec/27): whenever somebody has proved to own a key, ZeroMQ asks at
`inproc://zeromq.zap.01` of the context whether it may connect, and waits for the answer.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

from dpwa.clock import Clock
from dpwa.transport.accept_limiter import AcceptLimiter
from dpwa.transport.authorizer import (
    ACCEPTED,
    LISTENING,
    MONITOR_ENDPOINT,
    Authorizer,
    CurveAuthorizer,
)
from dpwa.transport.mailbox import Mailbox
from dpwa.transport.sockets import Context, Socket

log = logging.getLogger("dpwa.gate")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
RELOAD_EVERY_S = 1.0
EVENTS_PER_TURN = 64
EVENT = struct.Struct("=Hi")  # what it is, and a value: see zmq_socket_monitor(3)


class Authenticator(threading.Thread):
    """Serves one authorizer until it is stopped: after the sockets that ask are closed.

    Args:
        name: of the node.
        context: of the sockets that ask.
        keeps: what decides who may come, and how many.
        clock: what the time is taken from.
        changed: called by the thread whenever other keys are allowed than before.
    """

    def __init__(
        self,
        name: str,
        context: Context,
        keeps: tuple[Authorizer, AcceptLimiter],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(name=f"dpwa-gate-{name}", daemon=True)
        self._authorizer, self._accept_limiter = keeps
        self._clock = clock
        self._changed = changed
        self._is_stopping = False
        self._stop_signal: Mailbox[None] = Mailbox(context)
        self._zap: _Answers | None = None
        if isinstance(self._authorizer, CurveAuthorizer):
            self._zap = _Answers(context, self._authorizer)
        # Connected before there is anything to hear: ZeroMQ's own thread would wait for a listener,
        # and also for room in a queue that has a bound.
        self._monitor: Socket = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = 0
        self._monitor.connect(MONITOR_ENDPOINT)

    def run(self) -> None:
        """Own the sockets from here to the end."""
        poller = zmq.Poller()
        for socket in self._sockets():
            poller.register(socket, zmq.POLLIN)
        looked_at = self._clock.now()
        wait_s: float | None = None
        while not self._is_stopping:
            patience_s = RELOAD_EVERY_S if wait_s is None else min(wait_s, RELOAD_EVERY_S)
            ready = dict(poller.poll(int(patience_s * 1000) + 1))
            try:
                self._hear(ready)
                wait_s = self._accept_limiter.look(self._clock.now())
                if self._clock.now() - looked_at >= RELOAD_EVERY_S:
                    looked_at = self._clock.now()
                    self._reload()
            except Exception:
                log.exception("the authorizer has failed for an unforeseen reason; it goes on")

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
        if self._zap is not None:
            self._zap.socket.close(0)
        self._monitor.close(0)
        self._stop_signal.close()

    def _sockets(self) -> list[Socket]:
        own = [self._monitor, self._stop_signal.receiver]
        return own if self._zap is None else [self._zap.socket, *own]

    def _reload(self) -> None:
        if self._authorizer.keyring is not None and self._authorizer.keyring.reload():
            self._changed()

    def _hear(self, ready: dict[object, int]) -> None:
        if self._zap is not None and self._zap.socket in ready:
            self._zap.answer()
        if self._monitor in ready:
            self._hear_events()

    def _hear_events(self) -> None:
        """Take note of what the listening socket tells; of a flood, many events cost little."""
        receive, now = self._monitor.recv, self._clock.now()
        for _ in range(EVENTS_PER_TURN):
            try:
                event, value = EVENT.unpack(receive(zmq.NOBLOCK))
            except zmq.Again:
                return
            receive()  # the endpoint, which is the same for all
            self._authorizer.note(event, value)
            if event == ACCEPTED:
                self._accept_limiter.let_in(now)
            elif event == LISTENING:
                self._accept_limiter.belongs_to(value)


class _Answers:
    """Answers the questions about keys.

    Attributes:
        socket: at which they come.
    """

    def __init__(self, context: Context, authorizer: CurveAuthorizer) -> None:
        self._authorizer = authorizer
        self.socket: Socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer one question; ZeroMQ itself asks, so its form is right."""
        frames = self.socket.recv_multipart()
        to, empty, _version, request, _domain, address, _routing, _mechanism, key = frames
        public = z85.encode(key).decode()
        is_allowed = self._authorizer.judge(public, address.decode())
        verdict = [b"200", b"", public.encode()] if is_allowed else [b"400", b"", b""]
        self.socket.send_multipart([to, empty, ZAP_VERSION, request, *verdict, b""])
