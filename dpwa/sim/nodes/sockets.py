"""What all virtual sockets have, the PAIR within a process, frames and pollers."""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from dpwa.sim.nodes.tcp import VirtualReceipt
from dpwa.types import Frame

if TYPE_CHECKING:
    from typing_extensions import Self

    from dpwa.sim.nodes.zeromq import VirtualContext

MONITORED = struct.Struct("=Hi")
SNDMORE = int(zmq.SNDMORE)
SRCFD = int(zmq.SRCFD)


class Wakeable(Protocol):
    """What waits until it is woken."""

    def sleep(self, timeout_s: float | None) -> bool:
        """Wait."""
        ...

    def wake(self) -> None:
        """End the waiting."""
        ...


class VirtualFrame:
    """A frame that was received, as `zmq.Frame`."""

    __slots__ = ("_address", "_descriptor", "buffer", "more")

    def __init__(self, data: bytes, descriptor: int, address: str, *, more: bool) -> None:
        self.buffer = memoryview(data)
        self.more = more
        self._descriptor = descriptor
        self._address = address

    def get(self, key: int | str) -> int | str:
        """Return the connection that it came over, or the address of its other end.

        Raises:
            ZMQError: something else is wanted.
        """
        if key == SRCFD and self._descriptor >= 0:
            return self._descriptor
        if key == "Peer-Address" and self._address:
            return self._address
        raise zmq.ZMQError(errno.EINVAL)


class VirtualPoller:
    """Waits for sockets, as `zmq.Poller`.

    Args:
        sleeper: makes what waits.
    """

    def __init__(self, sleeper: Callable[[], Wakeable]) -> None:
        self._sleeper = sleeper
        self._sockets: dict[VirtualSocket, None] = {}
        self._maybe: dict[VirtualSocket, None] = {}  # that have had something
        self._waiting: Wakeable | None = None

    def register(self, socket: VirtualSocket, flags: int = zmq.POLLIN) -> None:
        """Wait for this socket, too."""
        if flags != zmq.POLLIN:
            raise NotImplementedError("virtual sockets can only be waited for to receive")
        self._sockets[socket] = None
        socket.pollers[self] = None
        if socket.is_readable:
            self.notice(socket)

    def unregister(self, socket: VirtualSocket) -> None:
        """Wait for it no more.

        Raises:
            KeyError: it was not registered.
        """
        del self._sockets[socket]
        socket.pollers.pop(self, None)
        self._maybe.pop(socket, None)

    def poll(self, timeout: int | None = None) -> list[tuple[VirtualSocket, int]]:
        """Wait until a socket can be read; return those that can.

        Args:
            timeout: in milliseconds; `None` for no limit.
        """
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
        """Take note that a socket has got something."""
        self._maybe[socket] = None
        if self._waiting is not None:
            self._waiting.wake()

    def _ready(self) -> list[tuple[VirtualSocket, int]]:
        self._maybe = {socket: None for socket in self._maybe if socket.is_readable}
        return [(socket, int(zmq.POLLIN)) for socket in self._maybe]


class VirtualSocket:
    """What all sockets have; options can be set as attributes.

    Attributes:
        host: where it is.
        pollers: that wait for it.
        closed: whether it was.
    """

    sndhwm = 1000

    def __init__(self, context: VirtualContext) -> None:
        self.context = context
        self.tcp = context.tcp
        self.host = context.host
        self.pollers: dict[VirtualPoller, None] = {}
        self.closed = False
        self._received: deque[tuple[list[bytes], int, str]] = deque()
        self._rest: deque[VirtualFrame] = deque()  # of the message that is being read
        self._begun: list[bytes] = []  # the message that is being sent
        self._monitor: PairSocket | None = None
        self._monitored = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_readable(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._received or self._rest)

    def push(self, frames: list[bytes], descriptor: int = -1, address: str = "") -> None:
        """Let a message arrive."""
        self._received.append((frames, descriptor, address))
        for poller in self.pollers:
            poller.notice(self)

    def recv(self, flags: int = 0, copy: bool = True) -> Any:  # noqa: ARG002
        """Receive one frame; it never waits.

        Raises:
            Again: there is none.
        """
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
        """Receive one message; see `recv`."""
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
        """Send one frame; it never waits.

        Raises:
            ZMQError: nobody is there to take it, or the queue is full.
        """
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
        """Return the endpoint that it is bound to, or whether it can be read."""
        match option:
            case zmq.LAST_ENDPOINT:
                return self.endpoint.encode()
            case zmq.EVENTS:
                return int(zmq.POLLIN) if self.is_readable else 0
        raise NotImplementedError(f"option {option}")

    endpoint = ""

    def monitor(self, endpoint: str, events: int) -> None:
        """Tell what happens to a PAIR that connects to an endpoint."""
        self._monitored = int(events)
        self._monitor = PairSocket(self.context)
        self._monitor.bind(endpoint)

    def get_monitor_socket(self, events: int) -> PairSocket:
        """Return a PAIR that is told what happens."""
        endpoint = f"inproc://monitor-{id(self)}"
        self.monitor(endpoint, events)
        listener = PairSocket(self.context)
        listener.connect(endpoint)
        return listener

    def disable_monitor(self) -> None:
        """Tell nothing any more."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def tell(self, event: int, value: int) -> None:
        """Tell the monitor."""
        if self._monitor is not None and self._monitored & event:
            self._monitor.send(MONITORED.pack(event, value), SNDMORE)
            self._monitor.send(self.endpoint.encode())

    def close(self, linger: int = 0) -> None:
        """Close it; what was not sent within `linger` milliseconds is dropped."""
        if not self.closed:
            self.closed = True
            self.disable_monitor()
            self.context.forget(self)
            self._close(linger)

    def _require_room(self, first: Frame) -> None:
        raise NotImplementedError

    def _send(self, frames: list[bytes], scale: float, receipt: VirtualReceipt) -> None:
        raise NotImplementedError

    def _close(self, linger: int) -> None:
        pass


class PairSocket(VirtualSocket):
    """A PAIR within one process."""

    def __init__(self, context: VirtualContext) -> None:
        super().__init__(context)
        self._other: PairSocket | None = None
        self._early: list[list[bytes]] = []

    def bind(self, endpoint: str) -> None:
        """Wait for another to connect, or meet one that has come before."""
        self._meet(endpoint)

    def connect(self, endpoint: str) -> None:
        """Meet the one that is bound there, or wait for it."""
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
