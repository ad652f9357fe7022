"""Something that is timed as it is."""

from __future__ import annotations

import time
from collections.abc import Callable

from dpwa.bench.records import Sample

Work = Callable[[], object]


class Timed:
    """Runs something in the processes that take part, at once, while the others wait.

    Args:
        figure: what its time is called.
        work: what to time.
        takes_part: whether this process does.
        calls: how many in a row make one sample, for what is too short to be timed alone; its time
            is that of one call.
    """

    def __init__(self, figure: str, work: Work, *, takes_part: bool = True, calls: int = 1) -> None:
        self._figure = figure
        self._work = work
        self._takes_part = takes_part
        self._calls = calls

    def prepare(self) -> None:
        """Nothing."""

    def run(self) -> Sample:
        """Time the work."""
        if not self._takes_part:
            return {}
        before = time.perf_counter()
        for _ in range(self._calls):
            self._work()
        return {self._figure: (time.perf_counter() - before) / self._calls}
