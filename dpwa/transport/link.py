"""PeerLink: this node's connection to one peer, with the state and any connection error.

ZeroMQ reconnects by itself, and does not tell. Its monitor reports events, so that a fetch from an
absent peer ends at once, and not after its timeout.
"""

from __future__ import annotations

import errno
import struct
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

import zmq

from dpwa.config.endpoints import split_tcp
from dpwa.runtime import can_open
from dpwa.transport.addresses import is_name
from dpwa.transport.sockets import (
    BUFFER,
    HANDSHAKE_TIMEOUT_MS,
    NOBLOCK,
    RECONNECT_MAX_MS,
    Context,
    Socket,
    asking_socket,
    receive,
    send_frames,
)
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import Message, encode

if TYPE_CHECKING:
    from dpwa.transport.keyring import Keyring


RENEWAL_S = 1.0  # minimum time between a useless link and a new one


class LinkState(Enum):
    IDLE = "idle"  # no connection, because there was nothing to send
    CONNECTING = "connecting"  # the result is not known yet
    UP = "up"  # the peer has answered the handshake
    DOWN = "down"  # refused, lost or silent; ZeroMQ or a new link tries again, see `is_useless`


_STATE_AFTER = {
    zmq.Event.HANDSHAKE_SUCCEEDED: LinkState.UP,
    zmq.Event.DISCONNECTED: LinkState.DOWN,
    zmq.Event.CLOSED: LinkState.DOWN,
    zmq.Event.CONNECT_RETRIED: LinkState.DOWN,  # the only event for a name without an address
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: LinkState.DOWN,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: LinkState.DOWN,
    zmq.Event.HANDSHAKE_FAILED_AUTH: LinkState.DOWN,
}
_MONITORED = struct.Struct("=hi")  # event and value, see zmq_socket_monitor(3)
# After these events, ZeroMQ does not connect again.
_GIVEN_UP = (zmq.Event.HANDSHAKE_FAILED_PROTOCOL, zmq.Event.HANDSHAKE_FAILED_AUTH)

LOST = "the connection was lost"
_NO_DESCRIPTORS = "this process has no file descriptors left (see `ulimit -n`)"
_SECURITY_DIFFERS = "one of the two nodes has `security: none`, and the other node has `curve`"
_NOT_LET_IN = "the peer has no key of this node, or has revoked the key, and refuses this node"
_NO_NODE = "a program that is not a dpwa node answers there"
_HANGS = "The program there hangs, is not a dpwa node, or has no file descriptors left"
_BROKE_OFF_PLAIN = (
    "the peer broke off the handshake. Perhaps the peer has `security: curve`, or no file "
    "descriptors left"
)
_BROKE_OFF_CURVE = (
    "the peer broke off the handshake. Perhaps its key is not the key known here, or the peer has "
    "no `security: curve`"
)


def nothing_answers(endpoint: str) -> str:
    return f"nothing answers at {endpoint}"


class PeerLink:
    """The socket to one peer, and its monitor. The thread that creates the link owns it.

    Without a `keyring`, no keys are used. If the keyring has no key of the peer, the link is down,
    and stays down. `problem`: why the link is not up, or "". `is_spent`: the link cannot recover,
    so the peer needs a new link. `keeps_unread`: messages of the peer can be read after it is gone,
    and messages that were not sent until then are sent to the next process at the endpoint.
    """

    def __init__(
        self,
        context: Context,
        peer: str,
        endpoint: str,
        keyring: Keyring | None = None,
        *,
        keeps_unread: bool = False,
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.state = LinkState.CONNECTING
        self.problem = ""
        self._keyring = keyring
        self._keys = None if keyring is None else keyring.for_link(peer)
        self.is_spent = False
        address = split_tcp(endpoint)
        self._is_named = address is not None and is_name(address[0])
        self._has_address = False  # whether the name has an address in the current IP family
        self.socket = asking_socket(context, endpoint, self._keys)
        if keeps_unread:
            self.socket.immediate = False
        try:
            # Before connecting, because after an unobserved handshake the link would stay unused.
            self.monitor: Socket = self.socket.get_monitor_socket(sum(_STATE_AFTER))
        except zmq.ZMQError:
            self.socket.close(0)
            raise
        if keyring is not None and self._keys is None:
            self.state, self.problem = LinkState.DOWN, keyring.missing(peer)
            return
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    @property
    def is_useless(self) -> bool:
        """Whether the peer needs a new link, because this link cannot recover or has old keys."""
        keys = None if self._keyring is None else self._keyring.for_link(self.peer)
        return self.is_spent or keys != self._keys

    def renewed(self, context: Context) -> PeerLink:
        """Return a new link to the same peer. It keeps the reason why this link was given up."""
        link = PeerLink(context, self.peer, self.endpoint, self._keyring)
        if self.is_spent and link.state is LinkState.CONNECTING:
            link.problem = self.problem
        return link

    def update(self) -> list[LinkState]:
        """Read new monitor events, and return the states that the link entered, in order."""
        entered: list[LinkState] = []
        if self.is_spent and self.state is LinkState.UP:
            self.state = LinkState.DOWN
            entered.append(self.state)
        while True:
            try:
                told = self.monitor.recv_multipart(NOBLOCK)
            except zmq.Again:
                return entered
            # This does the same as zmq.utils.monitor, which would import asyncio and ssl.
            number, value = _MONITORED.unpack(told[0])
            event = zmq.Event(number)
            state = _STATE_AFTER.get(event, self.state)
            self._note(event, value)
            if state is not self.state:
                entered.append(state)
                self.state = state

    def _note(self, event: zmq.Event, value: int) -> None:
        if event is zmq.Event.HANDSHAKE_SUCCEEDED:
            self.problem = ""
            return
        self.problem = self._reason(event, value) or self.problem or f"unknown host {self.endpoint}"
        self._has_address |= event is not zmq.Event.CONNECT_RETRIED
        if event is zmq.Event.CONNECT_RETRIED and self._is_named and can_open():
            self._choose_family(is_patient=value < RECONNECT_MAX_MS)
        # Otherwise, ZeroMQ would connect again twenty times a second.
        is_refused = self._keys is not None and event is zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        if event in _GIVEN_UP or is_refused:
            self.is_spent = True
        if is_refused:
            with suppress(zmq.ZMQError):  # the connection may have ended
                self.socket.disconnect(self.endpoint)

    def _choose_family(self, *, is_patient: bool) -> None:
        """Try IPv6 for a host name without an IPv4 address, and later try IPv4 again.

        ZeroMQ looks up a name on its own thread, for each attempt to connect, in one IP family.
        """
        if is_patient if self.socket.ipv6 else self._has_address:
            return
        with suppress(zmq.ZMQError):
            self.socket.disconnect(self.endpoint)
        self.socket.ipv6, self._has_address = not self.socket.ipv6, False
        self.socket.connect(self.endpoint)

    def _reason(self, event: zmq.Event, value: int) -> str:
        """Return the connection error in a monitor event, or ""."""
        if self.state is not LinkState.UP and not can_open():
            return _NO_DESCRIPTORS
        match event:
            case zmq.Event.HANDSHAKE_FAILED_AUTH:
                return _NOT_LET_IN
            case zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
                is_mismatch = value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
                return _SECURITY_DIFFERS if is_mismatch else _NO_NODE
            case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL if value == errno.EAGAIN:
                seconds = HANDSHAKE_TIMEOUT_MS // 1000
                return f"no answer to the handshake within {seconds} s. {_HANGS}"
            case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
                return _BROKE_OFF_PLAIN if self._keys is None else _BROKE_OFF_CURVE
            case zmq.Event.CLOSED:
                return nothing_answers(self.endpoint)
            case zmq.Event.DISCONNECTED if self.state is LinkState.UP:
                return LOST
        return ""

    def give_up(self, problem: str) -> None:
        """Stop using the link. The peer needs a new link."""
        self.is_spent, self.problem = True, problem

    def send_request(self, message: Message, payload: Frame | None = None) -> bool:
        """Send a request without waiting. Return whether the link accepted it."""
        frames = [encode(message)] if payload is None else [encode(message), payload]
        return send_frames(self.socket, frames) is not None

    def receive(self) -> list[Frame] | None:
        """Return one received answer, or `None`. An answer with too many frames ends the link."""
        frames = None if self.is_spent else receive(self.socket)
        if frames is None:
            return None
        if len(frames) > limits.MAX_FRAMES:
            self.give_up(_NO_NODE)
        return list(map(BUFFER, frames))

    def close(self, linger_ms: int = 0) -> None:
        """Close both sockets. Messages that cannot be sent within `linger_ms` are dropped."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)
