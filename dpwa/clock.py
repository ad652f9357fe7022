"""Clocks that can be replaced, and a deadline for an operation (not a node's training clock)."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A source of time. Tests and the simulator pass their own."""

    def now(self) -> float:
        """Seconds since an arbitrary start. They never decrease."""
        ...


class SystemClock:
    """The machine's clock. On Linux it counts suspension, so a node notices when it wakes."""

    # No function of ours in between: it is asked for many times a round.
    if hasattr(time, "CLOCK_BOOTTIME"):
        now = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        now = staticmethod(time.monotonic)


class AwakeClock:
    """The time in which this process was awake. Between two calls of `look` at most `most_s` count.

    A process that stands still hears no others, so their silence is its own. One thread at a time
    calls `look`. Any thread may ask for the time.
    """

    def __init__(self, clock: Clock, most_s: float, asleep_after_s: float) -> None:
        self.woke_at = -math.inf  # end of the last such pause, in this time
        self._clock = clock
        self._most_s = most_s
        self._asleep_after_s = asleep_after_s
        now = clock.now()
        self._looked = now, now  # when, in this time and in that of the clock

    def note_awake(self) -> bool:
        """Note that the process is awake. Return whether it was stopped until now."""
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
    """The moment an operation must have ended, shared by all its steps."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self.end = clock.now() + timeout_s  # by that clock

    def remaining_s(self) -> float:
        """Never negative."""
        return max(0.0, self.end - self._clock.now())

    def expired(self) -> bool:
        return self.remaining_s() == 0.0
