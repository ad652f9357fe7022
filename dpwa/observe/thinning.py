"""Bounded memory for what may be any number: rows by time, and things that happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from dpwa.observe.events import RunEvent
from dpwa.observe.history import FIRST_ROOM, Floats

Values = Callable[[], Sequence[float]]


class ThinnedRows:
    """At most so many rows, spread evenly over time; the first and the newest are among them.

    Args:
        capacity: rows that are kept, at least 4.
        width: how many values a row has, the time first.
    """

    def __init__(self, capacity: int, width: int) -> None:
        self._capacity = capacity
        self._rows = np.empty((min(capacity, FIRST_ROOM), width), np.float64)
        self._count = 0
        self._period = 0.0
        self._due = -np.inf
        self._newest: Values | None = None  # that is not among the rows

    def add(self, time: float, values: Values) -> None:
        """Take a row of a time that is not before the last one.

        Args:
            time: in seconds.
            values: returns the row; it is called only if that is kept.
        """
        self._newest = values
        if time >= self._due:
            self._due = time + self._period
            self.keep_newest()

    def keep_newest(self) -> None:
        """Keep the last row that came, whatever its time."""
        if self._newest is None:
            return
        if self._count == self._capacity:
            self._halve()
        elif self._count == len(self._rows):
            grown = np.empty((min(2 * self._count, self._capacity), self._rows.shape[1]))
            grown[: self._count] = self._rows
            self._rows = grown
        self._rows[self._count] = self._newest()
        self._count += 1
        self._newest = None

    def rows(self) -> Floats:
        """Return what is kept, shape `(rows, width)`; a copy."""
        self.keep_newest()
        rows: Floats = self._rows[: self._count].copy()
        return rows

    def _halve(self) -> None:
        kept = self._rows[: self._count : 2]
        self._count = len(kept)
        self._rows[: self._count] = kept
        span = float(self._rows[self._count - 1, 0] - self._rows[0, 0])
        self._period = max(self._period, span / self._count)


class ThinnedEvents:
    """At most so many events of each kind; all of them are counted.

    Args:
        capacity: of each kind, at least 2.

    Attributes:
        counts: of all, by kind.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: dict[str, list[RunEvent]] = {}
        self._strides: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def add(self, event: RunEvent) -> None:
        """Take an event."""
        kind = event.kind
        kept = self._kept.setdefault(kind, [])
        if self.counts[kind] % self._strides.setdefault(kind, 1) == 0:
            if len(kept) == self._capacity:
                del kept[1::2]
                self._strides[kind] *= 2
            kept.append(event)
        self.counts[kind] += 1

    def events(self) -> tuple[RunEvent, ...]:
        """Return what is kept, in order of time."""
        found = [event for kept in self._kept.values() for event in kept]
        return tuple(sorted(found, key=lambda event: event.time))
