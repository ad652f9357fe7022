"""Flow control: which peer to fetch from, learnt from how earlier fetches ended.

Each peer has one score in [10, 1000], starting at 1000: +10 for a fetch that succeeded, -100 for
one that failed. The target of a fetch is argmax(score + u), u a uniform integer in [10, 1000], so
good peers share the load.  Source: dpwa (2017).

That rule alone would never ask a peer at 10 again while another stands at 1000. So once every
`RETRY_EVERY_S` the fetch goes to one of the peers below `STARVED_BELOW`, drawn at random; if it
succeeds, that peer starts anew at 1000. A bad peer thus costs at most one timeout in that time, and
a peer that has recovered is found.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

LOWEST_SCORE = 10
HIGHEST_SCORE = 1000
REWARD = 10
PENALTY = 100
STARVED_BELOW = 500
RETRY_EVERY_S = 30.0


@dataclass(frozen=True)
class FlowControl:
    """The state of the rule. Every change returns a new value; an unknown peer is a KeyError.

    Attributes:
        scores: the score of each peer.
        retried_at: when the last retry was made.
        retrying: the peer that it went to, until the next choice.
    """

    scores: Mapping[str, int] = field(default_factory=dict)
    retried_at: float = float("-inf")
    retrying: str | None = None

    def added(self, peer: str) -> FlowControl:
        """Start a peer at the highest score: nothing is held against it yet."""
        return self._with(peer, HIGHEST_SCORE)

    def removed(self, peer: str) -> FlowControl:
        """Forget a peer."""
        return replace(self, scores={name: s for name, s in self.scores.items() if name != peer})

    def succeeded(self, peer: str) -> FlowControl:
        """Reward a fetch that brought a snapshot."""
        if peer == self.retrying:
            return self._with(peer, HIGHEST_SCORE)
        return self._with(peer, min(HIGHEST_SCORE, self.scores[peer] + REWARD))

    def failed(self, peer: str) -> FlowControl:
        """Penalise a fetch that brought nothing in time."""
        return self._with(peer, max(LOWEST_SCORE, self.scores[peer] - PENALTY))

    def choose(
        self, rng: random.Random, now: float, exclude: Collection[str] = ()
    ) -> tuple[str | None, FlowControl]:
        """Draw the peer to fetch from, or `None` when all are excluded.

        Args:
            rng: where the chance comes from.
            now: seconds on any clock that is the same in every call.
            exclude: peers not to choose.
        """
        scores = {peer: score for peer, score in self.scores.items() if peer not in exclude}
        starved = [peer for peer, score in scores.items() if score < STARVED_BELOW]
        if starved and now - self.retried_at >= RETRY_EVERY_S:
            peer = rng.choice(starved)
            return peer, replace(self, retried_at=now, retrying=peer)
        drawn = {
            peer: score + rng.randint(LOWEST_SCORE, HIGHEST_SCORE) for peer, score in scores.items()
        }
        chosen = max(drawn, key=drawn.__getitem__, default=None)
        return chosen, replace(self, retrying=None)

    def _with(self, peer: str, score: int) -> FlowControl:
        return replace(self, scores={**self.scores, peer: score})
