"""MembershipContext: the objects that the parts of a node's membership share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.config.endpoints import Seed
from dpwa.membership.remembered import Remembered
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.serving.rx_thread import RxThread
from dpwa.policy.members.states import MemberEntry
from dpwa.runtime import Runtime
from dpwa.transport.addresses import is_at
from dpwa.transport.keyring import Keyring
from dpwa.types import Frame
from dpwa.wire.members import unpack_entries

LookUp = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class MembershipContext:
    tx: TxThread
    rx: RxThread
    keyring: Keyring | None  # keys for calls to other nodes
    runtime: Runtime
    rng: random.Random
    look_up: LookUp  # finds the addresses of an endpoint with a host name; may take long
    named: frozenset[str]  # endpoints in the configuration
    memory: Remembered | None  # `None`: the node does not remember members
    remembered: tuple[Seed, ...]  # members from before the restart of this node

    def may_call(self, endpoint: str, source: str) -> bool:
        """Return whether to connect to `endpoint`, which a node at `source` claims as its own.

        A node with a key may be anywhere, and so may a node that the configuration names.
        """
        has_key = self.keyring is not None and endpoint.startswith("tcp://")
        return has_key or endpoint in self.named or is_at(endpoint, source)

    def unpack_news(self, payload: Frame, *, is_local: bool) -> tuple[MemberEntry, ...]:
        """Unpack entries about members. Over TCP, drop local sockets that are not configured."""
        entries = unpack_entries(payload)
        return entries if is_local else tuple(e for e in entries if self._is_remote(e.endpoint))

    def _is_remote(self, endpoint: str) -> bool:
        return endpoint.startswith("tcp://") or endpoint in self.named
