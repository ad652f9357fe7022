"""Replaceable clocks, and a deadline for an operation. They are not a node's training clock."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A source of time. Tests and the simulator pass their own clocks."""

    def now(self) -> float:
        """Seconds since an arbitrary start. They never decrease."""
        ...


class SystemClock:
    """The machine's monotonic clock. On Linux, it also counts the time of a suspended machine."""

    # The function of the standard library itself, because each round calls it many times.
    if hasattr(time, "CLOCK_BOOTTIME"):
        now = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        now = staticmethod(time.monotonic)


class AwakeClock:
    """A clock that counts only the time in which this process was awake.

    Between two calls of `note_awake`, the clock advances by at most `most_s` seconds. A stopped
    process receives nothing, so it must not count the time of the stop as silence of other nodes.
    One thread calls `note_awake`. Any thread may call `now`.
    """

    def __init__(self, clock: Clock, most_s: float, asleep_after_s: float) -> None:
        self.woke_at = -math.inf  # end of the last stop, in this time
        self._clock = clock
        self._most_s = most_s
        self._asleep_after_s = asleep_after_s
        now = clock.now()
        self._looked = now, now  # time of the last note, in this time and in the clock's time

    def note_awake(self) -> bool:
        """Record that this process is awake, and return whether it was stopped until now."""
        now, (awake, looked) = self._clock.now(), self._looked
        self._looked = awake + min(now - looked, self._most_s), now
        has_slept = now - looked > self._asleep_after_s
        if has_slept:
            self.woke_at = self._looked[0]
        return has_slept

    def now(self) -> float:
        awake, looked = self._looked
        return awake + min(self._clock.now() - looked, self._most_s)


class Deadline:
    """The time at which an operation must have ended. All steps of the operation share it."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self.end = clock.now() + timeout_s  # on that clock

    def remaining_s(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self.end - self._clock.now())

    def expired(self) -> bool:
        return self.remaining_s() == 0.0
