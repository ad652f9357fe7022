"""The serving budget: how much of a core the requests of others may take.

The generic cell rate algorithm: `due` is the time at which the next request would be read if
requests came evenly and took exactly `share` of the time. One that has cost c seconds of a core
sets

    due = max(due, now) + c / share

and the next one is too early by `due - now - burst / share` seconds, if that is positive. So in any
time t they cost at most `share * t + burst`, and what the last one has cost beyond that. Source:
ITU-T Recommendation I.371 (virtual scheduling), with seconds of a core for cells.

>>> budget = ServingBudget(share=0.1, burst_s=0.05)
>>> budget.charge(0.05, now=0.0)
0.0
>>> budget.charge(0.01, now=0.0)
0.1
"""

from __future__ import annotations

import math


class ServingBudget:
    """What was used of it. Not thread-safe."""

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._tolerance_s = burst_s / share
        self._due = -math.inf

    def charge(self, cost_s: float, now: float) -> float:
        """Charge the seconds of a core that a request has cost; return how long to wait before the
        next.
        """
        self._due = max(self._due, now) + cost_s / self._share
        return max(0.0, self._due - now - self._tolerance_s)
