"""Virtual ZeroMQ: as much of it as nodes use, over `VirtualTcp`.

A ROUTER that listens, DEALERs that connect and go on connecting, PAIRs within a process, monitors
that tell of connections, and pollers. Errors and events are those of libzmq 4.3.5.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import zmq

from dpwa.sim.framing import wire_bytes
from dpwa.sim.nodes.sockets import PairSocket, VirtualSocket
from dpwa.sim.nodes.tcp import (
    TcpConnection,
    VirtualReceipt,
    VirtualTcp,
    WireMessage,
)
from dpwa.types import Frame


class VirtualContext:
    """Makes sockets of one process, as `zmq.Context`.

    Args:
        tcp: its connections.
        host: where it is.

    Attributes:
        inproc: PAIRs that were bound, or wait for one to be, by endpoint.
        is_dead: whether the process was killed.
    """

    max_sockets = 1023

    def __init__(self, tcp: VirtualTcp, host: str) -> None:
        self.tcp = tcp
        self.host = host
        self.inproc: dict[str, PairSocket] = {}
        self.is_dead = False
        self._sockets: dict[VirtualSocket, None] = {}

    def socket(self, kind: int) -> VirtualSocket:
        """Return a socket."""
        made: VirtualSocket = _KINDS[kind](self)
        self._sockets[made] = None
        if self.is_dead:
            made.close()
        return made

    def forget(self, socket: VirtualSocket) -> None:
        """Drop a socket that was closed."""
        self._sockets.pop(socket, None)

    def kill(self) -> None:
        """Close all sockets, as the kernel does for a process that was killed."""
        self.is_dead = True
        for socket in list(self._sockets):
            socket.close()

    def term(self) -> None:
        """Do nothing: nothing is left."""


class RouterSocket(VirtualSocket):
    """A ROUTER that listens."""

    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._peers: dict[bytes, TcpConnection] = {}
        self._identities: dict[TcpConnection, bytes] = {}
        self._made = 0

    def bind(self, endpoint: str) -> None:
        """Listen.

        Raises:
            ZMQError: another socket listens there.
        """
        if endpoint in self.tcp.listeners:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self.endpoint = endpoint
        self.tcp.listeners[endpoint] = self

    def accepted(self, connection: TcpConnection) -> None:
        """Take note of a connection."""
        self._made += 1
        identity = b"\0" + self._made.to_bytes(4, "big")
        self._peers[identity] = connection
        self._identities[connection] = identity
        self.tell(int(zmq.EVENT_ACCEPTED), connection.number)

    def request_arrived(self, connection: TcpConnection, frames: list[bytes]) -> None:
        """Take in a message."""
        identity, number = self._identities[connection], connection.number
        self.push([identity, *frames], number, connection.address)

    def peer_gone(self, connection: TcpConnection) -> None:
        """Take note that a connection has ended."""
        del self._peers[self._identities.pop(connection)]
        self.tell(int(zmq.EVENT_DISCONNECTED), connection.number)

    def _require_room(self, first: Frame) -> None:
        connection = self._peers.get(bytes(first))
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if connection.answers.queued >= self.sndhwm:
            raise zmq.Again

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:
        message = _message(frames[1:], scale, receipt)
        self._peers[frames[0]].answers.send(message)

    def _close(self, linger: int) -> None:
        self.tcp.listeners.pop(self.endpoint, None)
        for connection in self._peers.values():
            connection.close_server(flushes=linger > 0)
        self._peers.clear()
        self._identities.clear()


class DealerSocket(VirtualSocket):
    """A DEALER that connects to one endpoint, and connects again."""

    connect_timeout = 0
    reconnect_ivl = 100
    reconnect_ivl_max = 0

    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._connection: TcpConnection | None = None
        self._attempt = 0  # number of the one under way; others are over
        self._pause_ms = 0

    def connect(self, endpoint: str) -> None:
        """Begin to connect."""
        self.endpoint = endpoint
        self._dial()

    def disconnect(self, endpoint: str) -> None:  # noqa: ARG002
        """Connect no more."""
        self._attempt += 1
        self._hang_up(0)

    def answer_arrived(self, frames: list[bytes]) -> None:
        """Take in a message."""
        self.push(frames)

    def peer_gone(self) -> None:
        """Take note that the connection has ended, and connect again."""
        self._connection = None
        self._pause_ms = 0
        self.tell(int(zmq.EVENT_DISCONNECTED), 0)
        self._dial_later()

    def _dial(self) -> None:
        self._attempt += 1
        attempt, server = self._attempt, self.tcp.hosts.get(self.endpoint)
        if server is None or not self.tcp.connects(self.host, server):
            self._after(self.connect_timeout / 1000.0, attempt, self._failed)
            return
        model = self.tcp.model
        there = model.delay_s(self.host, server) + model.delay_s(server, self.host)
        self._after(there, attempt, lambda: self._answered(attempt, server))

    def _answered(self, attempt: int, server: str) -> None:
        """The other host has answered: it refuses, or lets both shake hands."""
        if not self.tcp.connects(self.host, server):
            self._after(self.connect_timeout / 1000.0, attempt, self._failed)
        elif self.endpoint not in self.tcp.listeners:
            self._failed()
        else:
            model = self.tcp.model
            there = model.delay_s(self.host, server) + model.delay_s(server, self.host)
            self._after(there, attempt, self._shaken_hands)

    def _shaken_hands(self) -> None:
        router = self.tcp.listeners.get(self.endpoint)
        if router is None or not self.tcp.connects(self.host, router.host):
            self.tell(int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), errno.EPIPE)
            self._dial_later()
            return
        self._connection = self.tcp.connected(self, router)
        self._pause_ms = 0
        router.accepted(self._connection)
        self.tell(int(zmq.EVENT_HANDSHAKE_SUCCEEDED), 0)

    def _failed(self) -> None:
        self.tell(int(zmq.EVENT_CLOSED), 0)
        self._dial_later()

    def _dial_later(self) -> None:
        longest = self.reconnect_ivl_max or self.reconnect_ivl
        self._pause_ms = min(2 * self._pause_ms or self.reconnect_ivl, longest)
        self.tell(int(zmq.EVENT_CONNECT_RETRIED), self._pause_ms)
        self._attempt += 1
        self._after(self._pause_ms / 1000.0, self._attempt, self._dial)

    def _after(self, seconds: float, attempt: int, act: Callable[[], None]) -> None:
        def go_on() -> None:
            if not self.closed and self._attempt == attempt:
                act()

        self.tcp.network.call_later(seconds, go_on)

    def _require_room(self, first: Frame) -> None:  # noqa: ARG002
        if self._connection is None or self._connection.requests.queued >= self.sndhwm:
            raise zmq.Again

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:
        if self._connection is not None:
            self._connection.requests.send(_message(frames, scale, receipt))

    def _hang_up(self, linger: int) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_client(flushes=linger > 0)

    def _close(self, linger: int) -> None:
        self._hang_up(linger)


def _message(frames: list[bytes], scale: float, receipt: VirtualReceipt) -> WireMessage:
    """Return a message; `scale`: what a byte of its last frame stands for."""
    *first, last = map(len, frames)
    return WireMessage(frames, wire_bytes([*first, int(last * scale)]), receipt)


_KINDS: dict[int, Callable[[VirtualContext], Any]] = {
    int(zmq.PAIR): PairSocket,
    int(zmq.ROUTER): RouterSocket,
    int(zmq.DEALER): DealerSocket,
}
