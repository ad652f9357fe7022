"""Connections between simulated processes, in the virtual time of a `VirtualNetwork`.

All messages of a connection arrive, in order. A lost packet takes longer. A killed process closes
its connections, as the kernel would, and the close arrives at the other end like a message. No
message crosses a partition. Heartbeats break a connection that is silent for too long. Large
transfers share the links of both hosts (`FairLinks`), so their rates change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpwa.config.endpoints import split_tcp
from dpwa.sim.links import FairLinks, SharedLink, Transfer
from dpwa.sim.rules.wire_sizes import PACKET_BYTES
from dpwa.transport.sockets import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
from dpwa.virtual_network import VirtualNetwork

if TYPE_CHECKING:
    from dpwa.sim.nodes.zeromq import DealerSocket, RouterSocket

SMALL_BYTES = 16 * 1024  # on the wire; smaller messages take no share of a link
CONNECTING_BYTES = 4 * 64 + 3 * PACKET_BYTES  # of a handshake in each direction


class VirtualReceipt:
    """Reports when the sender has sent all bytes of a message."""

    def __init__(self) -> None:
        self.done = False


@dataclass
class WireMessage:
    frames: list[bytes]
    nbytes: int  # with headers
    receipt: VirtualReceipt


@dataclass
class Traffic:
    """Bytes on the wire that a host has sent and received."""

    sent: int = 0
    received: int = 0


class VirtualTcp:
    """The virtual TCP network. A byte of a lent frame counts as `scale` bytes on the wire."""

    def __init__(self, network: VirtualNetwork, model: LinkModel, scale: float = 1.0) -> None:
        self.network = network
        self.model = model
        self.scale = scale
        self.links = FairLinks(network)
        self.listeners: dict[str, RouterSocket] = {}  # listening sockets, by endpoint
        self.hosts: dict[str, str] = {}  # names of hosts, by endpoint
        self.traffic: dict[str, Traffic] = {}  # by the name of the host
        # is shown every message as it leaves: when, from whom, to whom, its frames
        self.tap: Callable[[float, str, str, list[bytes]], None] | None = None
        self._connections: dict[int, TcpConnection] = {}
        self._numbers = 0
        network.watch(self._cuts_changed)

    def connects(self, client: str, server: str) -> bool:
        return self.model.may_connect(client, server) and not self.network.is_cut(client, server)

    def connected(self, dealer: DealerSocket, router: RouterSocket) -> TcpConnection:
        """Return a new connection after its handshake, and count the handshake's traffic."""
        self._numbers += 1
        connection = TcpConnection(self, self._numbers, dealer, router)
        self._connections[connection.number] = connection
        for one, other in ((dealer.host, router.host), (router.host, dealer.host)):
            self.count(one, other, CONNECTING_BYTES)
        return connection

    def count(self, sender: str, to: str, nbytes: int) -> None:
        self.traffic.setdefault(sender, Traffic()).sent += nbytes
        self.traffic.setdefault(to, Traffic()).received += nbytes

    def forget_connection(self, connection: TcpConnection) -> None:
        """Remove a connection that both ends have closed."""
        self._connections.pop(connection.number, None)

    def _cuts_changed(self) -> None:
        for connection in list(self._connections.values()):
            connection.check_cut()


class Stream:
    """One direction of a connection."""

    def __init__(
        self,
        tcp: VirtualTcp,
        sender: str,
        to: str,
        # called with each message, and with `None` after the close
        arrived: Callable[[list[bytes] | None], None],
    ) -> None:
        self._tcp = tcp
        self._network = tcp.network
        self.sender = sender
        self.to = to
        self._arrived = arrived
        self._rate = min(tcp.model.upload(sender), tcp.model.download(to))
        self._waiting: deque[WireMessage] = deque()  # messages behind the current transfer
        self._transfer: Transfer | None = None
        self._under_way: deque[list[bytes] | None] = deque()
        self._left_at = 0.0
        self._arrives_at = 0.0
        self._held = 0  # number of arrivals that were due while the link was cut
        self._closes = False

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def send_message(self, message: WireMessage) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._send_next()

    def close(self) -> None:
        self._closes = True
        if not self._waiting:
            self._under_way_now(None)

    def drop(self) -> None:
        """Drop the messages that have not been sent."""
        if self._transfer is not None:
            self._tcp.links.end_transfer(self._transfer)
            self._transfer = None
        for message in self._waiting:
            message.receipt.done = True
        self._waiting.clear()

    def set_cut(self, *, is_cut: bool) -> None:
        """Pause the stream while the link is cut, and resume the stream afterwards."""
        if self._transfer is not None:
            self._tcp.links.hold(self._transfer, is_held=is_cut)
        if not is_cut:
            held, self._held = self._held, 0
            for _ in range(held):
                self._arrive_after(0.0)

    def _send_next(self) -> None:
        while self._waiting:
            message = self._waiting[0]
            if message.nbytes >= SMALL_BYTES:
                model, sender, to = self._tcp.model, self.sender, self.to
                links: dict[SharedLink, float] = {
                    ("up", sender): model.upload(sender),
                    ("down", to): model.download(to),
                }
                shared = model.shared_link(sender, to)
                if shared is not None:
                    links["shared", shared[0]] = shared[1]
                is_held = self._network.is_cut(sender, to)
                self._transfer = Transfer(links, message.nbytes, self._has_left, is_held)
                self._tcp.links.begin_transfer(self._transfer)
                return
            self._waiting.popleft()
            self._leaves(message)
        if self._closes:
            self._under_way_now(None)

    def _has_left(self) -> None:
        self._transfer = None
        message = self._waiting.popleft()
        self._left_at = self._network.clock.now()
        self._count(message)
        self._under_way_now(message.frames)
        self._send_next()

    def _leaves(self, message: WireMessage) -> None:
        """Send a small message without reserving a share of a link."""
        self._left_at = max(self._left_at, self._network.clock.now()) + message.nbytes / self._rate
        self._count(message)
        self._under_way_now(message.frames)

    def _count(self, message: WireMessage) -> None:
        message.receipt.done = True
        if self._tcp.tap is not None:
            self._tcp.tap(self._left_at, self.sender, self.to, message.frames)
        self._tcp.count(self.sender, self.to, message.nbytes)

    def _under_way_now(self, frames: list[bytes] | None) -> None:
        self._under_way.append(frames)
        left_in = max(0.0, self._left_at - self._network.clock.now())
        self._arrive_after(left_in)

    def _arrive_after(self, seconds: float) -> None:
        now = self._network.clock.now()
        due = now + seconds + self._tcp.model.delay_s(self.sender, self.to)
        self._arrives_at = max(self._arrives_at, due)
        self._network.call_later(self._arrives_at - now, self._arrive)

    def _arrive(self) -> None:
        if self._network.is_cut(self.sender, self.to):
            self._held += 1
        elif self._under_way:
            self._arrived(self._under_way.popleft())


class TcpConnection:
    """A connection of a DEALER to a ROUTER."""

    def __init__(
        self, tcp: VirtualTcp, number: int, dealer: DealerSocket, router: RouterSocket
    ) -> None:
        self.number = number
        self._tcp = tcp
        self._dealer: DealerSocket | None = dealer
        self._router: RouterSocket | None = router
        client, server = dealer.host, router.host
        own = (split_tcp(endpoint) for endpoint, host in tcp.hosts.items() if host == client)
        # of the host of the DEALER; empty if it has none
        self.address = next((address[0] for address in own if address is not None), "")
        self.requests = Stream(tcp, client, server, self._request_arrived)
        self.answers = Stream(tcp, server, client, self._answer_arrived)
        self._made_at = tcp.network.clock.now()
        self._cut_at: float | None = None

    def close_client(self, *, flushes: bool = False) -> None:
        """Close the DEALER's end. With `flushes`, all messages arrive before the close."""
        self._dealer = None
        self._closed(self.requests, flushes=flushes)

    def close_server(self, *, flushes: bool = False) -> None:
        self._router = None
        self._closed(self.answers, flushes=flushes)

    def check_cut(self) -> None:
        """Update the connection after a cut, or after the end of a cut."""
        is_cut = self._tcp.network.is_cut(self.requests.sender, self.requests.to)
        for stream in (self.requests, self.answers):
            stream.set_cut(is_cut=is_cut)
        now = self._tcp.network.clock.now()
        if is_cut and self._cut_at is None:
            self._cut_at = now
            period_s = HEARTBEAT_MS / 1000.0
            next_beat_s = period_s - (now - self._made_at) % period_s
            silent_s = next_beat_s + HEARTBEAT_TIMEOUT_MS / 1000.0
            self._tcp.network.call_later(silent_s, lambda: self._silent_since(now))
        elif not is_cut:
            self._cut_at = None

    def _silent_since(self, cut_at: float) -> None:
        if self._cut_at == cut_at:
            self._answer_arrived(None)
            self._request_arrived(None)

    def _closed(self, stream: Stream, *, flushes: bool) -> None:
        if not flushes:
            stream.drop()
        stream.close()
        if self._dealer is None and self._router is None:
            self._tcp.forget_connection(self)

    def _request_arrived(self, frames: list[bytes] | None) -> None:
        router = self._router
        if router is None:
            return
        if frames is not None:
            router.request_arrived(self, frames)
            return
        self.answers.drop()
        self._router = None
        router.peer_gone(self)
        if self._dealer is None:
            self._tcp.forget_connection(self)

    def _answer_arrived(self, frames: list[bytes] | None) -> None:
        dealer = self._dealer
        if dealer is None:
            return
        if frames is not None:
            dealer.answer_arrived(frames)
            return
        self.requests.drop()
        self._dealer = None
        dealer.peer_gone()
        if self._router is None:
            self._tcp.forget_connection(self)


class LinkModel(Protocol):
    """The latencies, rates and reachability of nodes for `VirtualTcp`, by node names."""

    def delay_s(self, sender: str, to: str) -> float:
        """Return a random one-way delay of a message, without the time for its bytes."""
        ...

    def may_connect(self, client: str, server: str) -> bool:
        """Return whether `client` may connect to `server`, if no partition separates them."""
        ...

    def upload(self, node: str) -> float:
        """Return the upload rate of a node in bytes per second."""
        ...

    def download(self, node: str) -> float:
        """Return the download rate of a node in bytes per second."""
        ...

    def shared_link(self, sender: str, to: str) -> tuple[str, float] | None:
        """Return a link that other nodes also use, as its name and bytes per second, or `None`."""
        ...
