"""The part of ZeroMQ that nodes use, over `VirtualTcp`.

It has listening ROUTERs, DEALERs that connect and reconnect, PAIRs within a process, monitors of
connections, and pollers. Errors and events are those of libzmq 4.3.5.
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zmq

from dpwa.sim.nodes.tcp import (
    TcpConnection,
    VirtualReceipt,
    VirtualTcp,
    WireMessage,
)
from dpwa.sim.rules.wire_sizes import wire_bytes
from dpwa.types import Frame

if TYPE_CHECKING:
    from typing_extensions import Self

    from dpwa.sim.nodes.runtime import Sleeper

MONITORED = struct.Struct("=Hi")
SNDMORE = int(zmq.SNDMORE)
SRCFD = int(zmq.SRCFD)


class VirtualFrame:
    """A received frame, like `zmq.Frame`."""

    __slots__ = ("_address", "_descriptor", "buffer", "more")

    def __init__(self, data: bytes, descriptor: int, address: str, *, more: bool) -> None:
        self.buffer = memoryview(data)
        self.more = more
        self._descriptor = descriptor
        self._address = address

    def get(self, key: int | str) -> int | str:
        """Return the connection's descriptor (`SRCFD`) or the remote address (`Peer-Address`)."""
        if key == SRCFD and self._descriptor >= 0:
            return self._descriptor
        if key == "Peer-Address" and self._address:
            return self._address
        raise zmq.ZMQError(errno.EINVAL)


class VirtualPoller:
    """Waits for sockets, like `zmq.Poller`. `sleeper` returns the object that waits."""

    def __init__(self, sleeper: Callable[[], Sleeper]) -> None:
        self._sleeper = sleeper
        self._sockets: dict[VirtualSocket, None] = {}
        self._maybe: dict[VirtualSocket, None] = {}  # sockets that may have messages
        self._waiting: Sleeper | None = None

    def register(self, socket: VirtualSocket, flags: int = zmq.POLLIN) -> None:
        if flags != zmq.POLLIN:
            raise NotImplementedError("a poller of virtual sockets waits only for POLLIN")
        self._sockets[socket] = None
        socket.pollers[self] = None
        if socket.is_readable:
            self.notice(socket)

    def unregister(self, socket: VirtualSocket) -> None:
        del self._sockets[socket]
        socket.pollers.pop(self, None)
        self._maybe.pop(socket, None)

    def poll(self, timeout: int | None = None) -> list[tuple[VirtualSocket, int]]:
        """Return the readable sockets, after at most `timeout` milliseconds."""
        ready = self._ready()
        if ready or timeout == 0:
            return ready
        self._waiting = self._sleeper()
        try:
            self._waiting.sleep(None if timeout is None or timeout < 0 else timeout / 1000.0)
        finally:
            self._waiting = None
        return self._ready()

    def notice(self, socket: VirtualSocket) -> None:
        self._maybe[socket] = None
        if self._waiting is not None:
            self._waiting.wake()

    def _ready(self) -> list[tuple[VirtualSocket, int]]:
        self._maybe = {socket: None for socket in self._maybe if socket.is_readable}
        return [(socket, int(zmq.POLLIN)) for socket in self._maybe]


class VirtualSocket:
    """The common part of all sockets. Options are attributes."""

    sndhwm = 1000

    def __init__(self, context: VirtualContext) -> None:
        self.context = context
        self.tcp = context.tcp
        self.host = context.host
        self.pollers: dict[VirtualPoller, None] = {}
        self.closed = False
        self._received: deque[tuple[list[bytes], int, str]] = deque()
        self._rest: deque[VirtualFrame] = deque()  # unread frames of the current message
        self._begun: list[bytes] = []  # frames of the message that is being sent
        self._monitor: PairSocket | None = None
        self._monitored = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_readable(self) -> bool:
        return bool(self._received or self._rest)

    def push(self, frames: list[bytes], descriptor: int = -1, address: str = "") -> None:
        self._received.append((frames, descriptor, address))
        for poller in self.pollers:
            poller.notice(self)

    def recv(self, flags: int = 0, copy: bool = True) -> Any:  # noqa: ARG002
        """Receive one frame, without waiting."""
        if not self._rest:
            if not self._received:
                raise zmq.Again
            frames, descriptor, address = self._received.popleft()
            last = len(frames) - 1
            self._rest.extend(
                VirtualFrame(data, descriptor, address, more=i < last)
                for i, data in enumerate(frames)
            )
        frame = self._rest.popleft()
        return bytes(frame.buffer) if copy else frame

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        frames = [self.recv(flags)]
        while self._rest:
            frames.append(self.recv(flags))
        return frames

    def send(
        self,
        data: Frame,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,  # noqa: ARG002
    ) -> VirtualReceipt | None:
        """Send one frame, without waiting."""
        if self.closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        if not self._begun:
            self._require_room(data)
        self._begun.append(bytes(data))
        if flags & SNDMORE:
            return None
        frames, self._begun = self._begun, []
        receipt = VirtualReceipt()
        self._send(frames, 1.0 if copy else self.tcp.scale, receipt)
        return receipt

    def getsockopt(self, option: int) -> bytes | int:
        """Return the bound endpoint, or whether the socket is readable."""
        match option:
            case zmq.LAST_ENDPOINT:
                return self.endpoint.encode()
            case zmq.EVENTS:
                return int(zmq.POLLIN) if self.is_readable else 0
        raise NotImplementedError(f"option {option}")

    endpoint = ""

    def monitor(self, endpoint: str, events: int) -> None:
        self._monitored = int(events)
        self._monitor = PairSocket(self.context)
        self._monitor.bind(endpoint)

    def get_monitor_socket(self, events: int) -> PairSocket:
        endpoint = f"inproc://monitor-{id(self)}"
        self.monitor(endpoint, events)
        listener = PairSocket(self.context)
        listener.connect(endpoint)
        return listener

    def disable_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def report_event(self, event: int, value: int) -> None:
        if self._monitor is not None and self._monitored & event:
            self._monitor.send(MONITORED.pack(event, value), SNDMORE)
            self._monitor.send(self.endpoint.encode())

    def close(self, linger: int = 0) -> None:
        """Close the socket, and drop messages that are not sent within `linger` milliseconds."""
        if not self.closed:
            self.closed = True
            self.disable_monitor()
            self.context.forget_socket(self)
            self._close(linger)

    def _require_room(self, first: Frame) -> None:
        raise NotImplementedError

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:
        raise NotImplementedError

    def _close(self, linger: int) -> None:
        pass


class PairSocket(VirtualSocket):
    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._other: PairSocket | None = None
        self._early: list[list[bytes]] = []

    def bind(self, endpoint: str) -> None:
        """Bind, and pair with a socket that has already connected to this endpoint, if any."""
        self._meet(endpoint)

    def connect(self, endpoint: str) -> None:
        """Pair with the socket that is bound to the endpoint, or that will bind to it later."""
        self._meet(endpoint)

    def _meet(self, endpoint: str) -> None:
        other = self.context.inproc.pop(endpoint, None)
        if other is None:
            self.context.inproc[endpoint] = self
            self.endpoint = endpoint
            return
        self._other, other._other = other, self
        for frames in other._early:
            self.push(frames)

    def _require_room(self, first: Frame) -> None:
        pass

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:  # noqa: ARG002
        receipt.done = True
        if self._other is None:
            self._early.append(frames)
        elif not self._other.closed:
            self._other.push(frames)

    def _close(self, linger: int) -> None:  # noqa: ARG002
        if self.context.inproc.get(self.endpoint) is self:
            del self.context.inproc[self.endpoint]
        self._other = None


class VirtualContext:
    """Makes the sockets of one process, like `zmq.Context`."""

    max_sockets = 1023

    def __init__(self, tcp: VirtualTcp, host: str) -> None:
        self.tcp = tcp
        self.host = host
        # bound PAIRs, and PAIRs that wait for a bind, by endpoint
        self.inproc: dict[str, PairSocket] = {}
        self.is_dead = False
        self._sockets: dict[VirtualSocket, None] = {}

    def socket(self, kind: int) -> VirtualSocket:
        made: VirtualSocket = _KINDS[kind](self)
        self._sockets[made] = None
        if self.is_dead:
            made.close()
        return made

    def forget_socket(self, socket: VirtualSocket) -> None:
        self._sockets.pop(socket, None)

    def kill(self) -> None:
        """Close all sockets, as the kernel does for a killed process."""
        self.is_dead = True
        for socket in list(self._sockets):
            socket.close()

    def term(self) -> None:
        """Do nothing, because no resources are left."""


class RouterSocket(VirtualSocket):
    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._peers: dict[bytes, TcpConnection] = {}
        self._identities: dict[TcpConnection, bytes] = {}
        self._made = 0

    def bind(self, endpoint: str) -> None:
        if endpoint in self.tcp.listeners:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self.endpoint = endpoint
        self.tcp.listeners[endpoint] = self

    def accepted(self, connection: TcpConnection) -> None:
        self._made += 1
        identity = b"\0" + self._made.to_bytes(4, "big")
        self._peers[identity] = connection
        self._identities[connection] = identity
        self.report_event(int(zmq.EVENT_ACCEPTED), connection.number)

    def request_arrived(self, connection: TcpConnection, frames: list[bytes]) -> None:
        identity, number = self._identities[connection], connection.number
        self.push([identity, *frames], number, connection.address)

    def peer_gone(self, connection: TcpConnection) -> None:
        del self._peers[self._identities.pop(connection)]
        self.report_event(int(zmq.EVENT_DISCONNECTED), connection.number)

    def _require_room(self, first: Frame) -> None:
        connection = self._peers.get(bytes(first))
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if connection.answers.queued >= self.sndhwm:
            raise zmq.Again

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:
        message = _message(frames[1:], scale, receipt)
        self._peers[frames[0]].answers.send_message(message)

    def _close(self, linger: int) -> None:
        self.tcp.listeners.pop(self.endpoint, None)
        for connection in self._peers.values():
            connection.close_server(flushes=linger > 0)
        self._peers.clear()
        self._identities.clear()


class DealerSocket(VirtualSocket):
    """A DEALER that connects to one endpoint, and reconnects."""

    connect_timeout = 0
    reconnect_ivl = 100
    reconnect_ivl_max = 0

    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._connection: TcpConnection | None = None
        self._attempt = 0  # number of the current attempt
        self._pause_ms = 0

    def connect(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._dial()

    def disconnect(self, endpoint: str) -> None:  # noqa: ARG002
        self._attempt += 1
        self._hang_up(0)

    def answer_arrived(self, frames: list[bytes]) -> None:
        self.push(frames)

    def peer_gone(self) -> None:
        """Connect again after the connection has ended."""
        self._connection = None
        self._pause_ms = 0
        self.report_event(int(zmq.EVENT_DISCONNECTED), 0)
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
        """Handle the reply of the remote host: a refusal, or the start of the handshake."""
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
            self.report_event(int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), errno.EPIPE)
            self._dial_later()
            return
        self._connection = self.tcp.connected(self, router)
        self._pause_ms = 0
        router.accepted(self._connection)
        self.report_event(int(zmq.EVENT_HANDSHAKE_SUCCEEDED), 0)

    def _failed(self) -> None:
        self.report_event(int(zmq.EVENT_CLOSED), 0)
        self._dial_later()

    def _dial_later(self) -> None:
        longest = self.reconnect_ivl_max or self.reconnect_ivl
        self._pause_ms = min(2 * self._pause_ms or self.reconnect_ivl, longest)
        self.report_event(int(zmq.EVENT_CONNECT_RETRIED), self._pause_ms)
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
            self._connection.requests.send_message(_message(frames, scale, receipt))

    def _hang_up(self, linger: int) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_client(flushes=linger > 0)

    def _close(self, linger: int) -> None:
        self._hang_up(linger)


def _message(frames: list[bytes], scale: float, receipt: VirtualReceipt) -> WireMessage:
    """Make a message from frames. A byte of the last frame counts as `scale` bytes on the wire."""
    *first, last = map(len, frames)
    return WireMessage(frames, wire_bytes([*first, int(last * scale)]), receipt)


_KINDS: dict[int, Callable[[VirtualContext], Any]] = {
    int(zmq.PAIR): PairSocket,
    int(zmq.ROUTER): RouterSocket,
    int(zmq.DEALER): DealerSocket,
}
