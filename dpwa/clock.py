"""Time as an argument: a clock that can be replaced, and one deadline that spans an operation.

Not to be confused with a node's *training clock*, the number of updates it has published.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Where time comes from; tests and the simulator pass their own."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""
        ...


class SystemClock:
    """The machine's clock that never goes back.

    On Linux it goes on while the machine is suspended, so that a node notices when it wakes.
    """

    # No function of ours in between: it is asked for many times a round.
    if hasattr(time, "CLOCK_BOOTTIME"):
        now = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        now = staticmethod(time.monotonic)


class AwakeClock:
    """Time as far as this process was awake: between two looks no more than `most_s` of it passes.

    While a process stands still, or does not get its turn, it hears nobody: the silence is its own.
    Threads look again and again, one at a time; any thread may ask for the time.

    Args:
        clock: the time that passes for others.
        most_s: what may pass between two looks, in seconds.
        asleep_after_s: a longer pause between two looks means that the process was stopped.

    Attributes:
        woke_at: when it last came back from such a pause, in this time; -inf: never.
    """

    def __init__(self, clock: Clock, most_s: float, asleep_after_s: float) -> None:
        self.woke_at = -math.inf
        self._clock = clock
        self._most_s = most_s
        self._asleep_after_s = asleep_after_s
        now = clock.now()
        self._looked = now, now  # when, in this time and in that of the clock

    def look(self) -> bool:
        """Take note that the process is awake; return whether it was stopped until now."""
        now, (awake, looked) = self._clock.now(), self._looked
        self._looked = awake + min(now - looked, self._most_s), now
        has_slept = now - looked > self._asleep_after_s
        if has_slept:
            self.woke_at = self._looked[0]
        return has_slept

    def now(self) -> float:
        """Return the time, in seconds; it begins with that of the clock."""
        awake, looked = self._looked
        return awake + min(self._clock.now() - looked, self._most_s)


class Deadline:
    """The moment an operation must have ended, shared by all its steps."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._end = clock.now() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock.now())

    def expired(self) -> bool:
        """Tell whether no time is left."""
        return self.remaining_s() == 0.0
