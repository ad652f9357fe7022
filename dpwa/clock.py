"""Time as an argument: a clock that can be replaced, and one deadline that spans an operation.

Not to be confused with a node's *training clock*, the number of updates it has published.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from; tests and the simulator pass their own."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()


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
