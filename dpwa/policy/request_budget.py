"""The request budget: how fast each peer, and all of them together, may make requests.

The generic cell rate algorithm: each reader has the time `tat` at which its next request would be
due if requests came evenly at `rate_per_s`. A request sets

    tat = max(tat, now) + cost / rate_per_s

and is too early by `tat - now - burst / rate_per_s` seconds, if that is positive.  Source: ITU-T
Recommendation I.371 (virtual scheduling). One number for each peer is all there is to remember.
"""

from __future__ import annotations

MOST_REMEMBERED = 1024  # peers; of those that are not overdrawn nothing needs to be remembered


class RequestBudget:
    """What peers have used of their budgets. Not thread-safe.

    Args:
        rate_per_s: requests that one peer may make in a second.
        burst: requests that it may make at once.
    """

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._interval_s = 1 / rate_per_s
        self._tolerance_s = burst / rate_per_s
        self._due: dict[object, float] = {}
        self._all_due = 0.0

    def charge(self, peer: object, peers: int, now: float, cost: float = 1.0) -> float:
        """Charge a request of a peer; return the seconds to wait before the next one is taken.

        Args:
            peer: whose request it was.
            peers: how many peers there are; all together may send as much as these may.
            now: in seconds, on a clock that never goes backwards.
            cost: how many requests it counts as.
        """
        if len(self._due) >= MOST_REMEMBERED:
            self._due = {peer: due for peer, due in self._due.items() if due > now}
        due = self._due[peer] = max(self._due.get(peer, 0.0), now) + cost * self._interval_s
        self._all_due = max(self._all_due, now) + cost * self._interval_s / max(1, peers)
        return max(0.0, due - now - self._tolerance_s, self._all_due - now - self._tolerance_s)
