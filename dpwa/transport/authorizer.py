"""Authorizer: the nodes that may connect to a node, and whose messages are accepted.

ZeroMQ asks whether a peer may connect once, at the handshake (see authenticator.py). So messages on
a connection are checked again against the currently allowed keys. It also counts connections,
refused ones and silent ones.
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

MONITOR_ENDPOINT = "inproc://dpwa-gate"  # one in each context, and every node has its own
ZAP_DOMAIN = b"dpwa"

ACCEPTED = int(zmq.EVENT_ACCEPTED)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
HANDSHAKE_FAILED_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
# Why a handshake failed, as the side sees it that was connected to.
FAILURES = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "unknown_key",  # or revoked
    HANDSHAKE_FAILED_PROTOCOL: "protocol",  # keys where there are none, or none; or nonsense
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "broken_off",  # or too slow
}
# What came was encrypted for another key than that of this node: the other side has a wrong one.
WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
EVENTS = ACCEPTED | DISCONNECTED | sum(FAILURES)


class Authorizer:
    """An authorizer that is open to every node, for `security: none`. It counts connections."""

    keyring: Keyring | None = None

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter(dict.fromkeys(FAILURES.values(), 0))
        self._accepted = self._unheard = 0
        self.ended = 0  # connections
        self._heard: set[int] = set()
        self._renewed = 0  # how often the socket was made anew

    @property
    def monitor_endpoint(self) -> str:
        """The address of the socket's monitor. Each socket has its own, as old ones end later."""
        return f"{MONITOR_ENDPOINT}-{self._renewed}"

    def guard(self, router: Socket) -> None:
        """Let a socket report connections. Its thread calls this before it is bound."""
        router.monitor(self.monitor_endpoint, EVENTS)

    def renew(self) -> None:
        """Note that a new socket is made, so that all connections are new."""
        self._renewed += 1
        self.ended = self._accepted
        self._heard.clear()

    def is_allowed(self, user_id: str | None) -> bool:  # noqa: ARG002
        """Return whether messages of a user are accepted now. It is cheap. Any thread may ask."""
        return True

    def judge(self, public: str, address: str) -> bool:  # noqa: ARG002
        """Tell whether the owner of a key may connect."""
        return True

    def name_of(self, user_id: str | None) -> str | None:  # noqa: ARG002
        """Return the name of a user's node, or `None` if it is unknown or not allowed."""
        return None

    def speaks_for(self, user_id: str | None, name: str) -> bool:  # noqa: ARG002
        """Tell whether a user may say that it is the node of this name."""
        return True

    def mark_heard(self, descriptor: int) -> None:
        self._heard.add(descriptor)

    def note(self, event: int, value: int) -> None:
        """Count an event of `EVENTS` from the socket. Called by the authenticator.

        `value` is the descriptor of the connection, or the fault of a handshake. If a frame is too
        long, or there is no handshake at all, ZeroMQ reports only that the connection has ended.
        """
        if event == ACCEPTED:
            self._accepted += 1
        elif event == DISCONNECTED:
            self.ended += 1
            self._unheard += value not in self._heard
            self._heard.discard(value)  # the next one may have the same
        elif event in FAILURES:
            is_key = event == HANDSHAKE_FAILED_PROTOCOL and value == WRONG_KEY
            self._refused["unknown_key" if is_key else FAILURES[event]] += 1

    def report(self) -> JsonObject:
        """Count the handshakes that were refused, by reason."""
        return dict(self._refused)

    def connections(self) -> JsonObject:
        """Count the connections: accepted ones, ended ones, and ended ones without a message."""
        return {"accepted": self._accepted, "ended": self.ended, "unheard": self._unheard}
