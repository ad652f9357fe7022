"""The authorizer of a node: who may connect, and whose messages are heard.

ZeroMQ asks whether somebody may connect once, at the handshake (see authenticator.py). So whatever
comes over a connection is checked again against the keys that are allowed at that moment.
Whether there are keys or not, it counts who comes, who is refused and who has said nothing.
"""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
import sys
import termios
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import zmq

from dpwa.message_codes import get_log
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import fingerprint
from dpwa.types import JsonObject
from dpwa.wire import limits

log = get_log("dpwa.gate")

Socket = zmq.Socket[bytes]

MONITOR_ENDPOINT = "inproc://dpwa-gate"  # one in each context, and every node has its own
ZAP_DOMAIN = b"dpwa"
STRANGERS_NAMED = 64  # in the log, each once; the others are only counted

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
LOOK_EVERY_MS = 20
NOTHING_TO_LOOK_AT_MS = 1_000
CONNECTIONS_PER_MS = 2  # if there are many: to look at one takes some microseconds
# A message may have so much, as far as a peer may send it unasked; and what ZeroMQ has read ahead.
MOST_UNREAD_BYTES = limits.MAX_PUSH_BYTES + limits.MAX_HEADER_BYTES + 32 * 1024
HEARTBEAT_BYTES_PER_S = 128  # at most, encrypted too
RESET = struct.pack("ii", 1, 0)  # when it is closed, whatever was not sent or read
RECEIVED_BYTES = slice(128, 136)  # tcpi_bytes_received of tcp_info, see linux/tcp.h
EVENTS = ACCEPTED | DISCONNECTED | sum(FAILURES)


@dataclass
class _Connection:
    """What was received over a connection of TCP when a message of it was read last.

    Attributes:
        peer: the address of the other end.
        received: bytes.
        at: when that was, or when it was looked at first.
    """

    peer: object
    received: int = 0
    at: float = math.inf


class Authorizer:
    """An authorizer that is open to everybody: `security: none`; it counts who comes.

    ZeroMQ hands over a message when all of its frames have come, and holds each in 64 bytes. No
    option of it bounds how many there are, so the kernel is asked how much each connection brings:
    one that brings more than a message may have, and no message, is ended.

    Attributes:
        cut_off: how many connections were ended.
        look_every_ms: how often to `look`.
        look_at: when to do so next.
    """

    keyring: Keyring | None = None

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter(dict.fromkeys(FAILURES.values(), 0))
        self._accepted = self._ended = self._unheard = 0
        self._heard: set[int] = set()  # descriptors, and of those since the last look:
        self._fresh: set[int] = set()
        self._connections: dict[int, _Connection] = {}
        self.look_every_ms = NOTHING_TO_LOOK_AT_MS
        self.look_at = 0.0
        self.cut_off = 0

    def guard(self, router: Socket) -> None:
        """Have a socket tell who comes and goes; called by its thread before it is bound."""
        router.monitor(MONITOR_ENDPOINT, EVENTS)

    def is_allowed(self, user_id: str | None) -> bool:  # noqa: ARG002
        """Tell whether messages of a user are to be heard now; cheap, from any thread.

        Args:
            user_id: of `Received`.
        """
        return True

    def name_of(self, user_id: str | None) -> str | None:  # noqa: ARG002
        """Return the name of the node that a user is; `None` if that is not known or allowed."""
        return None

    def speaks_for(self, user_id: str | None, name: str) -> bool:  # noqa: ARG002
        """Tell whether a user may say that it is the node of this name."""
        return True

    def heard(self, descriptor: int) -> None:
        """Take note that a message that means something came over a connection."""
        self._fresh.add(descriptor)

    def look(self, router: Socket, now: float) -> None:
        """End the connections that bring much and no message; often, as memory fills quickly.

        Args:
            router: the socket that was guarded.
            now: in seconds of any clock.
        """
        self.look_every_ms = max(LOOK_EVERY_MS, len(self._connections) // CONNECTIONS_PER_MS)
        if not self._connections:
            self.look_every_ms = NOTHING_TO_LOOK_AT_MS
        self.look_at = now + self.look_every_ms / 1000
        endless = [each for each in self._connections if self._is_endless(each, now)]
        self._heard |= self._fresh
        self._fresh.clear()
        # Only now: what ZeroMQ had read by then is here, unless it is of no message.
        if endless and not int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            for descriptor in endless:
                self.cut(descriptor, MOST_UNREAD_BYTES)

    def _is_endless(self, descriptor: int, now: float) -> bool:
        connection = self._connections[descriptor]
        connection.at = min(connection.at, now)
        try:
            received = _received(descriptor)
            if descriptor in self._fresh:
                connection.received, connection.at = received - _waiting(descriptor), now
            heartbeats = HEARTBEAT_BYTES_PER_S * (now - connection.at)
            excess = received - connection.received - heartbeats - MOST_UNREAD_BYTES
            return excess > 0 and excess > _waiting(descriptor)
        except OSError:  # it has ended
            return False

    def cut(self, descriptor: int, nbytes: int) -> None:
        """End a connection that has brought so many bytes and no message.

        Another one may have this descriptor by now: nothing happens to that.
        """
        connection = self._connections.get(descriptor)
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
            if connection is None or own.getpeername() != connection.peer:
                return
            if _received(own.fileno()) - connection.received < nbytes:
                return
            del self._connections[descriptor]
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            own.shutdown(socket.SHUT_RDWR)
            self.cut_off += 1
            while own.recv(MOST_UNREAD_BYTES, socket.MSG_DONTWAIT):
                pass  # or ZeroMQ would read it

    def note(self, event: int, value: int) -> None:
        """Count what the socket tells; of the authenticator.

        Of a frame that is too long, or of what is no handshake at all, ZeroMQ tells nothing but
        that the connection has ended.

        Args:
            event: of `EVENTS`.
            value: the descriptor, of a connection that came or has ended; what was wrong, of a
                handshake that failed by the protocol.
        """
        if event == ACCEPTED:
            self._accepted += 1
            self._came(value)
        elif event == DISCONNECTED:
            self._ended += 1
            self._unheard += value not in self._heard | self._fresh
            self._heard.discard(value)  # the next one may have the same
            self._fresh.discard(value)
            self._connections.pop(value, None)
        elif event in FAILURES:
            is_key = event == HANDSHAKE_FAILED_PROTOCOL and value == WRONG_KEY
            self._refused["unknown_key" if is_key else FAILURES[event]] += 1

    def _came(self, descriptor: int) -> None:
        """Watch a connection of TCP; of others the kernel does not count what comes."""
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
            if own.family in (socket.AF_INET, socket.AF_INET6):
                self._connections[descriptor] = _Connection(own.getpeername())
                self.look_at = 0.0

    def report(self) -> JsonObject:
        """Count the handshakes that were refused, by reason."""
        return dict(self._refused)

    def connections(self) -> JsonObject:
        """Count the connections: those that came, have ended, and ended without a message."""
        return {"accepted": self._accepted, "ended": self._ended, "unheard": self._unheard}


def _received(descriptor: int) -> int:
    """Return how many bytes came over a connection.

    Raises:
        OSError: it has ended.
    """
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        told = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED_BYTES.stop)
    finally:
        borrowed.detach()
    return int.from_bytes(told[RECEIVED_BYTES], sys.byteorder)


def _waiting(descriptor: int) -> int:
    """Return how many of these bytes ZeroMQ has not read, or likewise raise `OSError`."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


class CurveAuthorizer(Authorizer):
    """An authorizer that asks for keys: `security: curve`; for any thread."""

    keyring: Keyring

    def __init__(self, name: str, keyring: Keyring) -> None:
        super().__init__()
        self._name = name
        self.keyring = keyring
        self._strangers: set[str] = set()

    def guard(self, router: Socket) -> None:
        """Make a socket ask for keys, and tell who comes and goes."""
        router.curve_server = True
        router.curve_secretkey = self.keyring.own.secret.reveal()
        router.zap_domain = ZAP_DOMAIN
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # where nobody answers, nobody gets in
        super().guard(router)

    def is_allowed(self, user_id: str | None) -> bool:
        """Tell whether the key of a user is allowed now."""
        return self.keyring.name_of(user_id) is not None

    def name_of(self, user_id: str | None) -> str | None:
        """Return the name of the node whose key a user has; `None` if it is not allowed now."""
        return self.keyring.name_of(user_id)

    def speaks_for(self, user_id: str | None, name: str) -> bool:
        """Tell whether the key of a user is that of the node of this name."""
        return self.keyring.name_of(user_id) == name

    def judge(self, public: str, address: str) -> bool:
        """Tell whether the owner of a key may connect; a stranger is named in the log once."""
        if self.keyring.name_of(public) is not None:
            return True
        if public not in self._strangers and len(self._strangers) < STRANGERS_NAMED:
            self._strangers.add(public)
            log.warning(
                "%s: refused %s, whose key is not allowed: %s (fingerprint %s)",
                self._name,
                address or "a process of this machine",
                public,
                fingerprint(public),
            )
        return False
