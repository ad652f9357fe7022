"""Authenticator: answers ZeroMQ's key checks, counts connections, and reloads the keys.

When a peer has proved that it owns a key, ZeroMQ asks whether the peer may connect, and waits for
the answer. It asks at `inproc://zeromq.zap.01` of the context (https://rfc.zeromq.org/spec/27).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import zmq
from zmq.utils import z85

from dpwa.transport.authorizer import Authorizer
from dpwa.transport.sockets import Context, Socket

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
RELOAD_EVERY_S = 1.0
TAKEN_PER_TURN = 64  # questions, and also events, before the thread does other work
EVENT = struct.Struct("=Hi")  # event and value, see zmq_socket_monitor(3)


class Authenticator:
    """Checks keys with one authorizer. The listening socket's thread creates and closes it.

    It must exist before that socket, and until it is closed, because ZeroMQ's own thread waits for
    answers. `changed` is called when the allowed keys have changed.
    """

    def __init__(
        self, context: Context, authorizer: Authorizer, changed: Callable[[], None]
    ) -> None:
        self._context = context
        self._authorizer = authorizer
        self._changed = changed
        self._reload_at = 0.0
        self._monitor = self._new_monitor()
        self._zap: Socket | None = None
        if authorizer.keyring is not None:
            self._zap = context.socket(zmq.ROUTER)
            self._zap.linger = 0
            self._zap.bind(ZAP_ENDPOINT)

    @property
    def sockets(self) -> list[Socket]:
        """The sockets to poll. If one of them is readable, call `process_events`."""
        return [each for each in (self._monitor, self._zap) if each is not None]

    def renew(self) -> None:
        """Replace the socket for connection events, before a new listening socket is created."""
        self._monitor.close(0)
        self._authorizer.renew()
        self._monitor = self._new_monitor()

    def _new_monitor(self) -> Socket:
        # Connected before the first event, because ZeroMQ's own thread waits for a listener. The
        # queue has no limit, because that thread would also wait for room in the queue.
        monitor: Socket = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.rcvhwm = 0
        monitor.connect(self._authorizer.monitor_endpoint)
        return monitor

    def process_events(self) -> None:
        """Answer questions about keys, and count events of the listening socket."""
        if self._zap is not None:
            for _ in range(TAKEN_PER_TURN):
                try:
                    question = self._zap.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._zap.send_multipart(_answer(self._authorizer, question))
        for _ in range(TAKEN_PER_TURN):
            try:
                event, value = EVENT.unpack(self._monitor.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            self._monitor.recv()  # the endpoint, which is the same for all events
            self._authorizer.note(event, value)

    def tick(self, now: float) -> None:
        """Reload the keys when it is due. `now` is in seconds, on any clock."""
        if now < self._reload_at:
            return
        self._reload_at = now + RELOAD_EVERY_S
        if self._authorizer.keyring is not None and self._authorizer.keyring.reload():
            self._changed()

    def close(self) -> None:
        """Close the authenticator's sockets after all sockets that need its answers are closed."""
        for each in self.sockets:
            each.close(0)


def _answer(authorizer: Authorizer, question: list[bytes]) -> list[bytes]:
    """Answer one key check (ZAP), which is well-formed because ZeroMQ itself sends it."""
    to, empty, _version, request, _domain, address, _routing, _mechanism, key = question
    public = z85.encode(key).decode()
    is_allowed = authorizer.judge(public, address.decode())
    status = [b"200", b"", public.encode()] if is_allowed else [b"400", b"", b""]
    return [to, empty, ZAP_VERSION, request, *status, b""]
