"""What the membership of a node works with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dpwa.clock import Clock
from dpwa.node.threads import Courier
from dpwa.transport.keyring import Keyring


@dataclass(frozen=True)
class Means:
    """What the membership of a node works with.

    Attributes:
        courier: sends messages to members.
        keyring: keys of those that are called; `None` where there are none.
        clock: what time is taken from.
        rng: where chance comes from.
    """

    courier: Courier
    keyring: Keyring | None
    clock: Clock
    rng: random.Random
