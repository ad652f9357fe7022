"""When to ask where to be let in: pure, as all chance and time is passed in."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dpwa.config.endpoints import Seed

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_ALONE_S = 2.0  # as long as nobody is known
LONGEST_PAUSE_S = 5.0  # for as long as the node lives: others may be there that nobody knows
MOST_SEEDS = 256


@dataclass
class _Attempts:
    seed: Seed
    due: float
    pause_s: float = FIRST_PAUSE_S


class Seeds:
    """Where to ask, with a pause that doubles each time, of which some is chance.

    Args:
        seeds: all of them at first.
        rng: source of randomness.
    """

    def __init__(self, seeds: Iterable[Seed], rng: random.Random) -> None:
        self._attempts = [_Attempts(seed, due=0.0) for seed in seeds]
        self._rng = rng

    def add(self, seed: Seed) -> None:
        """Ask there, too, if that is a new place and there are not too many of them."""
        is_new = all(attempts.seed.endpoint != seed.endpoint for attempts in self._attempts)
        if is_new and len(self._attempts) < MOST_SEEDS:
            self._attempts.append(_Attempts(seed, due=0.0))

    def keep(self, endpoints: Collection[str]) -> None:
        """Forget all places but these."""
        self._attempts = [each for each in self._attempts if each.seed.endpoint in endpoints]

    def due(self, now: float, known: Collection[str], *, is_alone: bool) -> list[Seed]:
        """Return where to ask now, and note that it is done.

        Args:
            now: in seconds.
            known: endpoints of this node and of members, where there is no need to.
            is_alone: whether no other member is known.
        """
        longest_s = LONGEST_PAUSE_ALONE_S if is_alone else LONGEST_PAUSE_S
        found = []
        for attempts in self._attempts:
            if attempts.seed.endpoint in known:
                attempts.pause_s = FIRST_PAUSE_S
                continue
            if is_alone:
                attempts.due = min(attempts.due, now + longest_s)
            if now >= attempts.due:
                attempts.due = now + self._rng.uniform(0.5, 1.0) * attempts.pause_s
                attempts.pause_s = min(longest_s, 2.0 * attempts.pause_s)
                found.append(attempts.seed)
        return found
