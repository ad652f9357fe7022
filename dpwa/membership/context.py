"""What the membership of a node works with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.config.endpoints import Seed
from dpwa.membership.remembered import Remembered
from dpwa.node.threads import NodeHandle
from dpwa.runtime import Runtime
from dpwa.transport.keyring import Keyring

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
        memory: where members are remembered; `None`: nowhere.
        remembered: members from an earlier life of this node.
    """

    node_handle: NodeHandle
    keyring: Keyring | None
    runtime: Runtime
    rng: random.Random
    look_up: LookUp
    memory: Remembered | None
    remembered: tuple[Seed, ...]
