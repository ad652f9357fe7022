"""What the membership of a node works with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.config.endpoints import Seed
from dpwa.membership.remembered import Remembered
from dpwa.node.threads import NodeHandle
from dpwa.policy.members.states import MemberEntry
from dpwa.runtime import Runtime
from dpwa.transport.addresses import is_at
from dpwa.transport.keyring import Keyring
from dpwa.types import Frame
from dpwa.wire.members import unpack_entries

LookUp = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class MembershipContext:
    """What the membership of a node works with.

    Attributes:
        node_handle: sends messages to members.
        keyring: keys of those that are called; `None` where there are none.
        runtime: of the node.
        rng: source of randomness.
        look_up: finds the addresses of an endpoint with a host name; may take long.
        named: addresses that the user has named.
        memory: where members are remembered; `None`: nowhere.
        remembered: members from an earlier life of this node.
    """

    node_handle: NodeHandle
    keyring: Keyring | None
    runtime: Runtime
    rng: random.Random
    look_up: LookUp
    named: frozenset[str]
    memory: Remembered | None
    remembered: tuple[Seed, ...]

    def may_call(self, endpoint: str, source: str) -> bool:
        """Tell whether to connect where somebody says that it is; `source`: where it asks from.

        Who has a key may be anywhere, and so may those of whom this node was told by its user.
        """
        has_key = self.keyring is not None and endpoint.startswith("tcp://")
        return has_key or endpoint in self.named or is_at(endpoint, source)

    def heard(self, payload: Frame, *, is_local: bool) -> tuple[MemberEntry, ...]:
        """Read news of members, without sockets in the file system unless it came over one.

        Raises:
            ProtocolError: it is something else.
        """
        entries = unpack_entries(payload)
        return entries if is_local else tuple(e for e in entries if self._is_remote(e.endpoint))

    def _is_remote(self, endpoint: str) -> bool:
        return endpoint.startswith("tcp://") or endpoint in self.named
