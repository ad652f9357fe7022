"""Flow control picks the peer for a node's next fetch, by the results of earlier fetches.

Each peer has a score in [10, 1000], which starts at 1000. A fetch that succeeds adds 10, and a
fetch that fails subtracts 100. The next fetch goes to argmax(score + u), where u is a uniform
random integer in [10, 1000], so good peers share the load. Source: dpwa (2017).

With this rule alone, a peer with a score of 10 would never be asked again while a different peer
has 1000. So from time to time, a fetch goes to a random peer below `STARVED_BELOW`. If the fetch
succeeds, that peer starts again at 1000, and the next peer below the limit may be tried at once. If
the fetch fails, no peer below the limit is tried for `RETRY_EVERY_S`. So all bad peers together
cost at most one timeout in that time.

Slow peers are picked less often, see `dpwa.policy.link_estimates`.

A peer that fails several times in a row rests, which means that it is not asked for a while. A new
connection ends the rest. While all peers rest, the peer whose rest ends first is asked early, after
a random time from [0.5, 1] * `TRIED_EVERY_S` since the last failure. After the k-th failure in a
row, k >= 3, a peer rests for a uniform random time from

    [0, min(LONGEST_REST_S, FIRST_REST_S * 2**(k - 3))]

The whole time is random ("full jitter"), so that nodes that failed together do not return together.
Two failures cause no rest, because networks occasionally lose a connection. Sources: M.
Brooker, Exponential Backoff And Jitter, AWS Architecture Blog (2015); RFC 8085, section 3.1.1.

>>> rests = BackOff()
>>> for _ in range(4):
...     rests = rests.failed(now=100.0, rng=random.Random(1))
>>> 100.0 <= rests.until <= 102.0
True
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

FORGIVEN = 2  # number of failures in a row without a rest
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
MAX_DOUBLINGS = 40


@dataclass(frozen=True)
class BackOff:
    """The failures in a row of one peer. Every change returns a new value. A success resets it."""

    failures: int = 0
    until: float = -math.inf  # time when the peer may be asked again, in seconds on any clock

    def failed(self, now: float, rng: random.Random) -> BackOff:
        """Count a failed fetch, and choose a random back-off time."""
        failures = self.failures + 1
        longest_s = longest_rest_s(failures)
        return BackOff(failures, now + rng.uniform(0.0, longest_s) if longest_s else self.until)

    def rests(self, now: float) -> bool:
        return now < self.until


def longest_rest_s(failures: int) -> float:
    """Return the maximum back-off time in seconds after this number of failures in a row."""
    if failures <= FORGIVEN:
        return 0.0
    return min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(failures - FORGIVEN - 1, MAX_DOUBLINGS))


LOWEST_SCORE = 10
HIGHEST_SCORE = 1000
REWARD = 10
PENALTY = 100
STARVED_BELOW = 500
RETRY_EVERY_S = 30.0
TRIED_EVERY_S = 5.0

_SPAN = HIGHEST_SCORE - LOWEST_SCORE + 1
_BITS = _SPAN.bit_length()
_ALL_ALIKE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class FlowControl:
    """Scores and back-offs of peers. Changes return a new value. Unknown peers raise KeyError."""

    scores: Mapping[str, int] = field(default_factory=dict)
    retried_at: float = -math.inf  # time of the last retry that has not succeeded
    retrying: str | None = None  # the peer of this retry, until the next choice
    # the failures of peers whose last fetch has failed
    back_offs: Mapping[str, BackOff] = field(default_factory=dict)
    pause_until: float = -math.inf  # before this time, no resting peer is asked

    def added(self, *peers: str) -> FlowControl:
        """Add `peers`, each with the highest score."""
        return replace(self, scores={**self.scores, **dict.fromkeys(peers, HIGHEST_SCORE)})

    def removed(self, peer: str) -> FlowControl:
        left = {name: score for name, score in self.scores.items() if name != peer}
        return replace(self.connected(peer), scores=left)

    def connected(self, peer: str) -> FlowControl:
        """End the back-off of a peer that has a new connection."""
        if peer not in self.back_offs:
            return self
        left = {name: back_off for name, back_off in self.back_offs.items() if name != peer}
        return replace(self, back_offs=left)

    def succeeded(self, peer: str) -> FlowControl:
        """Reward a peer whose fetch returned a snapshot."""
        rested = self.connected(peer) if peer in self.back_offs else self
        if peer == self.retrying:
            return replace(rested._with(peer, HIGHEST_SCORE), retried_at=-math.inf)
        score = min(HIGHEST_SCORE, self.scores[peer] + REWARD)
        return rested if score == self.scores[peer] else rested._with(peer, score)

    def failed(self, peer: str, now: float, rng: random.Random) -> FlowControl:
        """Penalise a peer whose fetch returned nothing in time."""
        back_off = self.back_offs.get(peer, BackOff()).failed(now, rng)
        penalised = self._with(peer, max(LOWEST_SCORE, self.scores[peer] - PENALTY))
        back_offs = {**self.back_offs, peer: back_off}
        return replace(penalised, back_offs=back_offs, pause_until=_pause_after(now, rng))

    def absent(self, peer: str) -> FlowControl:
        """Give an absent peer the lowest score, so that fetches rarely go to this peer."""
        return self._with(peer, LOWEST_SCORE)

    def rests(self, peer: str, now: float) -> bool:
        """Return whether the peer is in its back-off time, after several failed fetches."""
        return peer in self.back_offs and self.back_offs[peer].rests(now)

    def choose(
        self,
        rng: random.Random,
        now: float,
        among: Collection[str] | None = None,
        shares: Mapping[str, float] = _ALL_ALIKE,
    ) -> tuple[str | None, FlowControl]:
        """Return the peer for the next fetch, or `None`, and the new state. `among`: allowed peers.

        Slow peers are candidates with the probability in `shares`.
        """
        allowed = self.scores if among is None else {peer: self.scores[peer] for peer in among}
        scores = allowed
        if self.back_offs:
            scores = {peer: n for peer, n in allowed.items() if not self.rests(peer, now)}
        if allowed and not scores:
            return self._try_one_that_rests(rng, now, allowed)
        may_retry = now - self.retried_at >= RETRY_EVERY_S
        if may_retry and min(scores.values(), default=HIGHEST_SCORE) < STARVED_BELOW:
            peer = rng.choice([peer for peer, score in scores.items() if score < STARVED_BELOW])
            return peer, replace(self, retried_at=now, retrying=peer)
        taking_part = list(scores)
        if shares:
            taking_part = [p for p in scores if p not in shares or rng.random() < shares[p]]
        candidates = taking_part or list(scores)
        numbers = _numbers(rng, len(candidates))
        drawn = list(map(operator.add, map(scores.__getitem__, candidates), numbers))
        chosen = candidates[drawn.index(max(drawn))] if drawn else None
        return chosen, self if self.retrying is None else replace(self, retrying=None)

    def _try_one_that_rests(
        self, rng: random.Random, now: float, allowed: Collection[str]
    ) -> tuple[str | None, FlowControl]:
        if now < self.pause_until:
            return None, replace(self, retrying=None)
        peer = min(allowed, key=lambda name: self.back_offs[name].until)
        return peer, replace(self, retrying=None, pause_until=_pause_after(now, rng))

    def _with(self, peer: str, score: int) -> FlowControl:
        if self.scores.get(peer) == score:
            return self
        return replace(self, scores={**self.scores, peer: score})


def _numbers(rng: random.Random, count: int) -> list[int]:
    """Draw `count` random integers from `LOWEST_SCORE` to `HIGHEST_SCORE`, without `randint`."""
    drawn, draw = [], rng.getrandbits
    for _ in range(count):
        number = draw(_BITS)
        while number >= _SPAN:
            number = draw(_BITS)
        drawn.append(LOWEST_SCORE + number)
    return drawn


def _pause_after(now: float, rng: random.Random) -> float:
    return now + rng.uniform(0.5, 1.0) * TRIED_EVERY_S


FAR_SHARE = 0.25  # share of the picks in which all peers are candidates


def is_among_all(rng: random.Random) -> bool:
    """Decide at random whether to pick among all peers, or only among connected peers.

    A new connection costs both nodes more than a message. Peers without a connection are still
    picked sometimes, so that in the end all peers are asked and notified, and parameters mix with
    those of all nodes.
    """
    return rng.random() < FAR_SHARE
