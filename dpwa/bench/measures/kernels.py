"""What no round can be faster than: reading and writing the model once, by one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from dpwa.bench.model import MERGE_FACTOR
from dpwa.bench.records import Sample


class Timed:
    """Runs something in the processes that take part, at once, while the others wait.

    Args:
        figure: what its time is called.
        work: what to time.
        takes_part: whether this process does.
    """

    def __init__(self, figure: str, work: Callable[[], object], *, takes_part: bool) -> None:
        self._figure = figure
        self._work = work
        self._takes_part = takes_part

    def prepare(self) -> None:
        """Nothing."""

    def run(self) -> Sample:
        """Time the work."""
        if not self._takes_part:
            return {}
        before = time.perf_counter()
        self._work()
        return {self._figure: time.perf_counter() - before}


def copy_(source: torch.Tensor, scratch: torch.Tensor) -> Callable[[], object]:
    """Return `scratch = source`, both of shape `(n,)`."""
    return lambda: scratch.copy_(source)


def lerp_(source: torch.Tensor, scratch: torch.Tensor) -> Callable[[], object]:
    """Return `scratch += f * (source - scratch)`, both of shape `(n,)`."""
    return lambda: scratch.lerp_(source, MERGE_FACTOR)
