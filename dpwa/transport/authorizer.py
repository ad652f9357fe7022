"""The authorizer of a node: who may connect, and whose messages are heard.

ZeroMQ asks whether somebody may connect once, at the handshake (see authenticator.py). So whatever
comes over a connection is checked again against the keys that are allowed at that moment. It also
counts who comes, who is refused and who has said nothing.
"""

from __future__ import annotations

import logging
from collections import Counter

import zmq

from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import fingerprint
from dpwa.types import JsonObject

log = logging.getLogger("dpwa.gate")

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
EVENTS = ACCEPTED | DISCONNECTED | sum(FAILURES)


class Authorizer:
    """An authorizer that is open to everybody: `security: none`; it counts who comes."""

    keyring: Keyring | None = None

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter(dict.fromkeys(FAILURES.values(), 0))
        self._accepted = self._unheard = 0
        self.ended = 0  # connections
        self._heard: set[int] = set()
        self._renewed = 0  # how often the socket was made anew

    @property
    def monitor_endpoint(self) -> str:
        """Where the socket tells of itself; each has its own, as the one before ends by and by."""
        return f"{MONITOR_ENDPOINT}-{self._renewed}"

    def guard(self, router: Socket) -> None:
        """Have a socket tell who comes and goes; called by its thread before it is bound."""
        router.monitor(self.monitor_endpoint, EVENTS)

    def renew(self) -> None:
        """Take note that another socket is made, of which all connections are new."""
        self._renewed += 1
        self.ended = self._accepted
        self._heard.clear()

    def is_allowed(self, user_id: str | None) -> bool:  # noqa: ARG002
        """Tell whether messages of a user are to be heard now; cheap, from any thread."""
        return True

    def name_of(self, user_id: str | None) -> str | None:  # noqa: ARG002
        """Return the name of the node that a user is; `None` if that is not known or allowed."""
        return None

    def speaks_for(self, user_id: str | None, name: str) -> bool:  # noqa: ARG002
        """Tell whether a user may say that it is the node of this name."""
        return True

    def heard(self, descriptor: int) -> None:
        self._heard.add(descriptor)

    def note(self, event: int, value: int) -> None:
        """Count an event of `EVENTS` that the socket tells; of the authenticator.

        `value` is the descriptor of the connection, or what was wrong with a handshake. Of a frame
        that is too long, or of what is no handshake at all, ZeroMQ tells only that the connection
        has ended.
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
        """Count the connections: those that came, have ended, and ended without a message."""
        return {"accepted": self._accepted, "ended": self.ended, "unheard": self._unheard}


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
                "%s: refused %s, whose key is not allowed: %s (fingerprint %s) [DPWA-W025]",
                self._name,
                address or "a process of this machine",
                public,
                fingerprint(public),
            )
        return False
