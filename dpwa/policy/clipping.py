"""Clipping: how far a peer may pull a node, learnt from how far away peers usually are.

    x += f * scale * d,    d = peer - x,    scale = min(1, tau / |d|)

The radius tau is a running quantile of the distances |d|, so an honest swarm sets it by itself, and
it shrinks with the disagreement. A peer that is much farther away than the others pulls as much as
one at tau, and no more.  Source: L. He, S. P. Karimireddy and M. Jaggi, Byzantine-Robust
Decentralized Learning via ClippedGossip (2022); they show that a good tau exists, and the quantile
is an estimate of it.

Breakdown point. The radius is an order statistic: of n distances the one with floor(quantile*(n-1))
below it. With the median, as long as fewer than half of the distances in the window come from
adversaries, tau lies between the smallest and the largest honest distance, whatever they send.
About half of the honest pulls are shortened too: that is the price, paid in rounds to consensus.

>>> radius = ClipRadius(warm_up=3)
>>> [radius.scale(distance) for distance in (1.0, 1.0, 1.0, 100.0)]
[0.0, 0.0, 1.0, 0.01]
"""

from __future__ import annotations

import math
from collections import deque


class ClipRadius:
    """The running radius of one node. Not thread-safe.

    Attributes:
        radius: tau, in the units of the distances; `None` before the end of the warm-up.
        clipped: how many distances were beyond the radius, those that were not finite included.
    """

    def __init__(self, quantile: float = 0.5, window: int = 50, warm_up: int = 5) -> None:
        """Start without any distance.

        Args:
            quantile: which of the distances is the radius, from 0 to 1; lower is stricter.
            window: how many of the latest distances are remembered.
            warm_up: how many distances it takes to trust the radius; at most `window`.
        """
        self.radius: float | None = None
        self.clipped = 0
        self._quantile = quantile
        self._warm_up = warm_up
        self._distances: deque[float] = deque(maxlen=window)

    def scale(self, distance: float) -> float:
        """Return min(1, tau / distance), tau from the latest distances with this one, and learn it.

        It is 0 during the warm-up: the first peer to come may be an adversary, and a few rounds
        without a merge harm nobody.

        A distance that is not finite gets 0 and is not learnt. It says nothing about how far honest
        peers are, and there is no number to remember that would do no harm: as 0 it would shrink
        the radius, as infinity enough of them would lift it to infinity and so switch clipping off.
        If it is this node that has diverged, every distance is such a one, and tau stays as it was.
        """
        if not math.isfinite(distance):
            self.clipped += self.radius is not None
            return 0.0
        self._distances.append(distance)
        if len(self._distances) < self._warm_up:
            return 0.0
        self.radius = self._order_statistic()
        if distance <= self.radius:
            return 1.0
        self.clipped += 1
        return self.radius / distance

    def _order_statistic(self) -> float:
        """Return the quantile without interpolating: a neighbour may be an adversary's."""
        ordered = sorted(self._distances)
        return ordered[int(self._quantile * (len(ordered) - 1))]
