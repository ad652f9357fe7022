"""SampleHistory keeps the samples of the last hours in bounded memory. Newer ones are denser."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

EARLY = 0.9  # share of a period after which a sample is due, because threads wake up a bit early


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
    """The newest samples at one resolution. A sample that is too early is skipped.

    Args:
        resolution: density and maximum number of the samples.
        width: number of values of a sample.
    """

    def __init__(self, resolution: Resolution, width: int) -> None:
        self._period_s = resolution.period_s
        self._rows = np.empty((resolution.capacity, 1 + width), np.float64)
        self._count = 0  # samples added so far, including overwritten samples
        self._due = -np.inf

    def add_sample(self, time: float, values: Sequence[float]) -> None:
        """Add a sample. Its time, in seconds, must not be before the time of the last sample."""
        if time < self._due:
            return
        self._due = time + EARLY * self._period_s
        row = self._rows[self._count % len(self._rows)]
        row[0] = time
        row[1:] = values
        self._count += 1

    def rows(self) -> Floats:
        """Return a copy of the samples, oldest first. Shape `(samples, 1 + width)`, time first."""
        room = len(self._rows)
        first = 0 if self._count <= room else self._count % room
        rows: Floats = np.concatenate([self._rows[first : self._count], self._rows[:first]])
        return rows

    @property
    def nbytes(self) -> int:
        """Memory of the samples, in bytes."""
        return self._rows.nbytes


class SampleHistory:
    """The samples of one node. One thread may add samples while other threads read.

    Args:
        width: number of values of a sample.
        resolutions: from the finest to the coarsest.
    """

    def __init__(self, width: int, resolutions: Sequence[Resolution] = NODE) -> None:
        self._width = width
        self._rings = [Ring(resolution, width) for resolution in resolutions]
        self._last = -np.inf
        self._lock = threading.Lock()  # so that no reader sees a half overwritten row

    def add_sample(self, time: float, values: Sequence[float]) -> None:
        """Add a sample. It is skipped if it is not newer than the last one.

        Args:
            time: time of the sample, in seconds since the epoch.
            values: the sample, with NaN for unknown values.
        """
        with self._lock:
            if time > self._last:
                self._last = time
                for ring in self._rings:
                    ring.add_sample(time, values)

    def since(self, time: float = -np.inf, most: int | None = None) -> Floats:
        """Return the samples after a time, oldest first, each at the finest resolution stored.

        Args:
            time: only samples after this time, in seconds since the epoch, are returned.
            most: maximum number of samples. If there are more, the oldest are returned.

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
        """Return the samples at most `seconds` older than the newest, at the finest resolution.

        Returns:
            Shape `(samples, 1 + width)`, oldest first. The first column is the time.
        """
        with self._lock:
            rows, last = self._rings[0].rows(), self._last
        return rows[rows[:, 0] >= last - seconds]

    @property
    def last(self) -> float:
        """Time of the newest sample, in seconds since the epoch, or -inf without samples."""
        return self._last

    @property
    def nbytes(self) -> int:
        """Memory of the samples, in bytes."""
        return sum(ring.nbytes for ring in self._rings)
