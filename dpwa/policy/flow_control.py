"""Flow control: which peer to fetch from, learnt from how earlier fetches ended.

Each peer has one score in [10, 1000], starting at 1000: +10 for a fetch that succeeded, -100 for
one that failed. The target of a fetch is argmax(score + u), u a uniform integer in [10, 1000], so
good peers share the load and a bad one is still tried now and then.  Source: dpwa (2017).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

LOWEST_SCORE = 10
HIGHEST_SCORE = 1000
REWARD = 10
PENALTY = 100


@dataclass(frozen=True)
class FlowControl:
    """The scores of all peers. Every change returns a new value; an unknown peer is a KeyError."""

    scores: Mapping[str, int] = field(default_factory=dict)

    def added(self, peer: str) -> FlowControl:
        """Start (or start anew) a peer at the highest score: nothing is held against it."""
        return self._with(peer, HIGHEST_SCORE)

    def removed(self, peer: str) -> FlowControl:
        """Forget a peer."""
        return replace(self, scores={name: s for name, s in self.scores.items() if name != peer})

    def succeeded(self, peer: str) -> FlowControl:
        """Reward a fetch that brought a snapshot."""
        return self._with(peer, min(HIGHEST_SCORE, self.scores[peer] + REWARD))

    def failed(self, peer: str) -> FlowControl:
        """Penalise a fetch that brought nothing in time."""
        return self._with(peer, max(LOWEST_SCORE, self.scores[peer] - PENALTY))

    def choose(self, rng: random.Random, exclude: Collection[str] = ()) -> str | None:
        """Draw the peer to fetch from, or `None` when all are excluded."""
        drawn = {
            peer: score + rng.randint(LOWEST_SCORE, HIGHEST_SCORE)
            for peer, score in self.scores.items()
            if peer not in exclude
        }
        return max(drawn, key=drawn.__getitem__, default=None)

    def _with(self, peer: str, score: int) -> FlowControl:
        return replace(self, scores={**self.scores, peer: score})
