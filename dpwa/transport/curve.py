"""CurveAuthorizer decides which nodes may connect with `security: curve`. See authorizer.py."""

from __future__ import annotations

import logging

import zmq

from dpwa.transport.authorizer import ZAP_DOMAIN, Authorizer, Socket
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import fingerprint

log = logging.getLogger("dpwa.gate")

STRANGERS_NAMED = 64  # unknown keys that are logged, each once; others are only counted


class CurveAuthorizer(Authorizer):
    """An authorizer that requires keys, for `security: curve`. Any thread may use it."""

    keyring: Keyring

    def __init__(self, name: str, keyring: Keyring) -> None:
        super().__init__()
        self._name = name
        self.keyring = keyring
        self._strangers: set[str] = set()

    def guard(self, router: Socket) -> None:
        """Make a socket require keys, and start its connection monitor."""
        router.curve_server = True
        router.curve_secretkey = self.keyring.own.secret.reveal()
        router.zap_domain = ZAP_DOMAIN
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an authenticator, refuse all peers
        super().guard(router)

    def is_allowed(self, user_id: str | None) -> bool:
        """Tell whether the key of a user is allowed now."""
        return self.keyring.name_of(user_id) is not None

    def name_of(self, user_id: str | None) -> str | None:
        """Return the name of the node that owns a key, or `None` if the key is not allowed now."""
        return self.keyring.name_of(user_id)

    def speaks_for(self, user_id: str | None, name: str) -> bool:
        """Return whether the key of a user belongs to the node of this name."""
        return self.keyring.name_of(user_id) == name

    def judge(self, public: str, address: str) -> bool:
        """Return whether the owner of a key may connect. An unknown key is logged once."""
        if self.keyring.name_of(public) is not None:
            return True
        if public not in self._strangers and len(self._strangers) < STRANGERS_NAMED:
            self._strangers.add(public)
            log.warning(
                "%s: refused %s, because the key %s is not allowed (fingerprint %s) [DPWA-W025]",
                self._name,
                address or "a process of this machine",
                public,
                fingerprint(public),
            )
        return False
