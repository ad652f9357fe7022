"""A link: this node's connection to one peer, and whether it is up.

ZeroMQ reconnects by itself and says nothing; its monitor tells what happened, so that a fetch from
a peer that is not there ends at once instead of at its timeout.
"""

from __future__ import annotations

from enum import Enum

import zmq
from zmq.utils.monitor import recv_monitor_message

from dpwa.transport.sockets import Context, Socket, asking_socket, receive, send
from dpwa.types import Frame
from dpwa.wire.messages import Message, encode


class LinkState(Enum):
    """What is known of a connection."""

    CONNECTING = "connecting"  # no verdict yet
    UP = "up"  # the peer has answered the handshake
    DOWN = "down"  # refused, lost or silent; ZeroMQ keeps trying


_STATE_AFTER = {
    zmq.Event.HANDSHAKE_SUCCEEDED: LinkState.UP,
    zmq.Event.DISCONNECTED: LinkState.DOWN,
    zmq.Event.CLOSED: LinkState.DOWN,
    zmq.Event.CONNECT_RETRIED: LinkState.DOWN,  # all that is told of a name without an address
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: LinkState.DOWN,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: LinkState.DOWN,
    zmq.Event.HANDSHAKE_FAILED_AUTH: LinkState.DOWN,
}


class PeerLink:
    """The socket to one peer and its monitor; owned by the thread that creates it."""

    def __init__(self, context: Context, peer: str, endpoint: str) -> None:
        self.peer = peer
        self.state = LinkState.CONNECTING
        self.socket = asking_socket(context, endpoint)
        # Before connecting: a handshake that nobody watched would leave the link unused for ever.
        self.monitor: Socket = self.socket.get_monitor_socket(sum(_STATE_AFTER))
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def update(self) -> list[LinkState]:
        """Read what the monitor has to say; return the states entered since, in order."""
        entered: list[LinkState] = []
        while self.monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self.monitor)["event"])
            state = _STATE_AFTER.get(event, self.state)
            if state is not self.state:
                entered.append(state)
                self.state = state
        return entered

    def send(self, message: Message, payload: Frame | None = None) -> bool:
        """Send a request without waiting; return whether the link took it."""
        frames = [encode(message)] if payload is None else [encode(message), payload]
        return send(self.socket, frames) is not None

    def receive(self) -> list[Frame] | None:
        """Take one waiting answer, or return `None`."""
        return receive(self.socket)

    def close(self, linger_ms: int = 0) -> None:
        """Close both sockets; what was not sent within `linger_ms` is dropped."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)
