"""SampleHistory: samples of the last hours in bounded memory, with all of the last minutes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

EARLY = 0.9  # of a period: threads wake up a little sooner or later


@dataclass(frozen=True)
class Resolution:
    """The density of samples, and their maximum number.

    Attributes:
        period_s: seconds from one sample to the next.
        capacity: the maximum number of samples.
    """

    period_s: float
    capacity: int


SECONDS = Resolution(1.0, 600)
TENS_OF_SECONDS = Resolution(10.0, 1440)  # four hours
NODE = (SECONDS, TENS_OF_SECONDS)
OTHER_NODE = (TENS_OF_SECONDS,)


class Ring:
    """The newest samples of one resolution. A sample that is too early is skipped.

    Args:
        resolution: of the samples.
        width: number of values of a sample.
    """

    def __init__(self, resolution: Resolution, width: int) -> None:
        self._period_s = resolution.period_s
        self._rows = np.empty((resolution.capacity, 1 + width), np.float64)
        self._count = 0  # samples taken, with those that were overwritten
        self._due = -np.inf

    def add_sample(self, time: float, values: Sequence[float]) -> None:
        """Take a sample of a time, in seconds, that is not before the last one."""
        if time < self._due:
            return
        self._due = time + EARLY * self._period_s
        row = self._rows[self._count % len(self._rows)]
        row[0] = time
        row[1:] = values
        self._count += 1

    def rows(self) -> Floats:
        """Return a copy of all samples by time, shape `(samples, 1 + width)`, time first."""
        room = len(self._rows)
        first = 0 if self._count <= room else self._count % room
        rows: Floats = np.concatenate([self._rows[first : self._count], self._rows[:first]])
        return rows

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._rows.nbytes


class SampleHistory:
    """Samples of one node. One thread may add to them while others read.

    Args:
        width: number of values of a sample.
        resolutions: from the finest to the coarsest.
    """

    def __init__(self, width: int, resolutions: Sequence[Resolution] = NODE) -> None:
        self._width = width
        self._rings = [Ring(resolution, width) for resolution in resolutions]
        self._last = -np.inf
        self._lock = threading.Lock()  # a row that is half overwritten would be of no time

    def add_sample(self, time: float, values: Sequence[float]) -> None:
        """Add a sample. It is skipped if it is not newer than the last one.

        Args:
            time: in seconds since the epoch.
            values: the sample, with NaN for unknown values.
        """
        with self._lock:
            if time > self._last:
                self._last = time
                for ring in self._rings:
                    ring.add_sample(time, values)

    def since(self, time: float = -np.inf, most: int | None = None) -> Floats:
        """Return the samples after a time, oldest first, each moment at its finest resolution.

        Args:
            time: in seconds since the epoch.
            most: maximum number, of which the oldest are returned.

        Returns:
            Shape `(samples, 1 + width)`. The first column is the time.
        """
        found = np.empty((0, 1 + self._width), np.float64)
        with self._lock:
            rings = [ring.rows() for ring in self._rings]
        for rows in rings:
            if len(found):
                rows = rows[rows[:, 0] < found[0, 0]]
            found = np.concatenate([rows, found])
        found = found[found[:, 0] > time]
        return found if most is None else found[:most]

    def newest(self, seconds: float) -> Floats:
        """Return the samples of the last seconds before the newest, at the finest resolution.

        Returns:
            Shape `(samples, 1 + width)`, oldest first. The first column is the time.
        """
        with self._lock:
            rows, last = self._rings[0].rows(), self._last
        return rows[rows[:, 0] >= last - seconds]

    @property
    def last(self) -> float:
        """Time of the newest sample, or -inf if there is none."""
        return self._last

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(ring.nbytes for ring in self._rings)
