"""Authorizer: decides which peers may connect to a node, and which messages are accepted.

ZeroMQ asks only once whether a peer may connect, at the handshake (see authenticator.py). So the
key of each message's connection is checked again. The authorizer also counts connections, refused
connections, and connections without a message.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import zmq

from dpwa.types import JsonObject

if TYPE_CHECKING:
    from dpwa.transport.keyring import Keyring

log = logging.getLogger("dpwa.gate")

Socket = zmq.Socket[bytes]

MONITOR_ENDPOINT = "inproc://dpwa-gate"  # unique in a context, and every node has its own context
ZAP_DOMAIN = b"dpwa"

ACCEPTED = int(zmq.EVENT_ACCEPTED)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
HANDSHAKE_FAILED_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
# Why a handshake failed, from the view of the node that was connected to.
FAILURES = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "unknown_key",  # or a revoked key
    HANDSHAKE_FAILED_PROTOCOL: "protocol",  # keys on one side only, or garbage
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "broken_off",  # or too slow
}
# The data were encrypted for a different key than this node's, so the peer has a wrong key.
WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
EVENTS = ACCEPTED | DISCONNECTED | sum(FAILURES)


class Authorizer:
    """An authorizer that admits every node, for `security: none`. It counts connections."""

    keyring: Keyring | None = None

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter(dict.fromkeys(FAILURES.values(), 0))
        self._accepted = self._unheard = 0
        self.ended = 0  # number of connections that have ended
        self._heard: set[int] = set()
        self._renewed = 0  # number of times that the socket was replaced

    @property
    def monitor_endpoint(self) -> str:
        """The address of the listening socket's monitor, different for each socket."""
        return f"{MONITOR_ENDPOINT}-{self._renewed}"

    def guard(self, router: Socket) -> None:
        """Start a socket's connection monitor. The socket's thread calls this before the bind."""
        router.monitor(self.monitor_endpoint, EVENTS)

    def renew(self) -> None:
        """Count all connections as ended, because a new listening socket replaces the old one."""
        self._renewed += 1
        self.ended = self._accepted
        self._heard.clear()

    def is_allowed(self, user_id: str | None) -> bool:  # noqa: ARG002
        """Return whether messages of a ZeroMQ user id are accepted now. Fast, for any thread."""
        return True

    def judge(self, public: str, address: str) -> bool:  # noqa: ARG002
        """Tell whether the owner of a public key may connect."""
        return True

    def name_of(self, user_id: str | None) -> str | None:  # noqa: ARG002
        """Return the node name of a ZeroMQ user id, or `None` if unknown or not allowed."""
        return None

    def speaks_for(self, user_id: str | None, name: str) -> bool:  # noqa: ARG002
        """Return whether a ZeroMQ user id may send messages as the node `name`."""
        return True

    def mark_heard(self, descriptor: int) -> None:
        self._heard.add(descriptor)

    def note(self, event: int, value: int) -> None:
        """Count an event of the socket, one of `EVENTS`. The authenticator calls this.

        `value` is the descriptor of the connection, or the error of a handshake. If a frame is too
        long, or if no handshake arrives, ZeroMQ reports only that the connection has ended.
        """
        if event == ACCEPTED:
            self._accepted += 1
        elif event == DISCONNECTED:
            self.ended += 1
            self._unheard += value not in self._heard
            self._heard.discard(value)  # the next connection may have the same descriptor
        elif event in FAILURES:
            is_key = event == HANDSHAKE_FAILED_PROTOCOL and value == WRONG_KEY
            self._refused["unknown_key" if is_key else FAILURES[event]] += 1

    def report(self) -> JsonObject:
        """Return the number of refused handshakes, by reason."""
        return dict(self._refused)

    def connections(self) -> JsonObject:
        """Return the number of connections: accepted, ended, and ended without a message."""
        return {"accepted": self._accepted, "ended": self.ended, "unheard": self._unheard}
