"""Leader lock-in: one node leads nearly always, perhaps for no merit of its own.

With private shards, a leader's own shard can be easier than the others', which makes its loss lower
for good: all are pulled toward the node that has seen the easiest data. In one run of LSGD a single
node led 367 of 375 rounds.
"""

from __future__ import annotations

from collections import Counter, deque

FEWEST_ROUNDS = 100


class LockIn:
    """Watches who leads, and warns once of each node that leads more than a share of the rounds."""

    def __init__(self, window: int = 400, share: float = 0.8) -> None:
        self._window = window
        self._share = share
        self._leaders: deque[str] = deque()
        self._rounds_led: Counter[str] = Counter()
        self._warned_of: set[str] = set()

    def note(self, leader: str) -> str | None:
        """Count one more round that `leader` led; return a warning the first
        time it is too many.
        """
        self._count(leader)
        led, rounds = self._rounds_led[leader], len(self._leaders)
        is_locked_in = rounds >= FEWEST_ROUNDS and led > self._share * rounds
        if not is_locked_in or leader in self._warned_of:
            return None
        self._warned_of.add(leader)
        return (
            f"{leader} led {led} of the last {rounds} rounds ({100 * led / rounds:.0f} %): on "
            "private shards of data a leader's own shard may be easier than the others', and its "
            "loss low for that alone; use a common validation batch for the leader's loss"
        )

    def _count(self, leader: str) -> None:
        if len(self._leaders) == self._window:
            oldest = self._leaders.popleft()
            self._rounds_led[oldest] -= 1
            if not self._rounds_led[oldest]:
                del self._rounds_led[oldest]
        self._leaders.append(leader)
        self._rounds_led[leader] += 1
