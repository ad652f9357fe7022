"""Clipping limits a node's move in a merge, by a running quantile of the distances to peers.

    x += f * scale * d,    d = peer - x,    scale = min(1, tau / |d|)

The radius tau is a running quantile of the distances |d|. So honest nodes set it by themselves, and
it shrinks with the disagreement. Source: L. He, S. P. Karimireddy and M. Jaggi, Byzantine-Robust
Decentralized Learning via ClippedGossip (2022). They show that a good tau exists, and the quantile
is an estimate of it.

Breakdown point: of n sorted distances, the radius is the distance with index floor(quantile*(n-1)).
With the median, tau lies between the smallest and the largest honest distance, as long as fewer
than half of the distances in the window come from adversaries, whatever they send. The price is
that consensus takes more rounds, because about half of the honest pulls are shortened, too.

Until the window is long enough for a quantile, the radius is the smallest of at least
`MIN_DISTANCES` distances. An adversary could set it only if it were the only peer so far. With one
adversary among eight nodes, this is as likely (1 in 2,400) as that most of 15 distances are its
own.

>>> radius = ClipRadius(warm_up=15)
>>> [radius.scale(distance) for distance in (1.0, 100.0, 1.0, 100.0, 1.0)]
[0.0, 0.0, 0.0, 0.01, 1.0]
"""

from __future__ import annotations

import math
from collections import deque

MIN_DISTANCES = 4


class ClipRadius:
    """The running clip radius tau of one node. `radius` is `None` at first. Not thread-safe."""

    def __init__(self, quantile: float = 0.5, window: int = 50, warm_up: int = 5) -> None:
        """Configure tau: the `quantile` of the last `window` distances. Before there are `warm_up`
        distances, tau is the smallest of at least `MIN_DISTANCES`.
        """
        self.radius: float | None = None
        self._quantile = quantile
        self._warm_up = warm_up
        self._distances: deque[float] = deque(maxlen=window)

    def scale(self, distance: float) -> float:
        """Record `distance`, and return the scale of the merge, min(1, tau / distance).

        The scale is 0 for the first distances, because the first peer may be an adversary. It is
        also 0 for a distance that is not finite, and tau does not count such a distance. Counted as
        0, it would shrink the radius, and counted as infinity, it could switch clipping off. So tau
        does not change if this node itself has diverged.
        """
        if not math.isfinite(distance):
            return 0.0
        self._distances.append(distance)
        known = len(self._distances)
        if known < min(MIN_DISTANCES, self._warm_up):
            return 0.0
        is_warm = known >= self._warm_up
        self.radius = self._order_statistic() if is_warm else min(self._distances)
        return 1.0 if distance <= self.radius else self.radius / distance

    def _order_statistic(self) -> float:
        """Return the quantile without interpolating, which could mix in an adversary's distance."""
        ordered = sorted(self._distances)
        return ordered[int(self._quantile * (len(ordered) - 1))]
