"""When to knock where: pure, as all chance and time is passed in."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dpwa.config.joining import Seed

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_ALONE_S = 2.0  # as long as nobody is known
LONGEST_PAUSE_S = 5.0  # for as long as the node lives: others may be there that nobody knows
MOST_SEEDS = 256


@dataclass
class _Knocks:
    seed: Seed
    due: float
    pause_s: float = FIRST_PAUSE_S


class Seeds:
    """Where to knock, with a pause that doubles each time, of which some is chance.

    Args:
        seeds: all of them at first.
        rng: where chance comes from.
    """

    def __init__(self, seeds: Iterable[Seed], rng: random.Random) -> None:
        self._knocks = [_Knocks(seed, due=0.0) for seed in seeds]
        self._rng = rng

    def add(self, seed: Seed) -> None:
        """Knock there, too, if that is a new place and there are not too many of them."""
        is_new = all(knocks.seed.endpoint != seed.endpoint for knocks in self._knocks)
        if is_new and len(self._knocks) < MOST_SEEDS:
            self._knocks.append(_Knocks(seed, due=0.0))

    def keep(self, endpoints: Collection[str]) -> None:
        """Forget all places but these."""
        self._knocks = [each for each in self._knocks if each.seed.endpoint in endpoints]

    def due(self, now: float, known: Collection[str], *, is_alone: bool) -> list[Seed]:
        """Return where to knock now, and note that it is done.

        Args:
            now: in seconds.
            known: endpoints of this node and of members, where there is no need to.
            is_alone: whether no other member is known.
        """
        longest_s = LONGEST_PAUSE_ALONE_S if is_alone else LONGEST_PAUSE_S
        found = []
        for knocks in self._knocks:
            if knocks.seed.endpoint in known:
                knocks.pause_s = FIRST_PAUSE_S
                continue
            if is_alone:
                knocks.due = min(knocks.due, now + longest_s)
            if now >= knocks.due:
                knocks.due = now + self._rng.uniform(0.5, 1.0) * knocks.pause_s
                knocks.pause_s = min(longest_s, 2.0 * knocks.pause_s)
                found.append(knocks.seed)
        return found
