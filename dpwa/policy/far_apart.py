"""Periods that are too long: nodes that learn different things, and forget them when they merge.

With private shards, the mean of two nodes that went far apart does worse on the data of either than
the node did before. On digits whose classes are dealt to four nodes, with a period of 50 steps, the
loss of the batch after an outer step was more than twice that of the batches before it in 8 of 10
cases (shared data: in less than 1 of 10), and nodes ended at accuracies of .52 to .55; with a
period of 5 at .95.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean

BATCHES = 5  # before a merge, whose mean loss is compared with the first loss after it
RISE = 2.0
FEWEST_MERGES, MOST_MERGES = 3, 9
SHORTER = 10  # times shorter a period is recommended, so that shorter ones are left alone


class FarApart:
    """Watches the loss around merges, and warns once if most of them make it rise by far."""

    def __init__(self, setting: str, period: int) -> None:
        self._setting = setting
        self._period = period
        self._losses: deque[float] = deque(maxlen=BATCHES)
        self._rose: deque[bool] = deque(maxlen=MOST_MERGES)
        self._is_first = False  # whether the next loss is the first after a merge
        self._has_warned = period < SHORTER

    def merged(self) -> None:
        """Note that the next loss is that of a merged model."""
        self._is_first = True

    def measured(self, loss: float | None) -> str | None:
        """Take the loss of a batch; return a warning the first time that most merges raised it."""
        if loss is None or not math.isfinite(loss) or self._has_warned:
            return None
        is_first, self._is_first = self._is_first, False
        warning = self._compared(loss) if is_first and len(self._losses) == BATCHES else None
        if is_first:
            self._losses.clear()
        self._losses.append(loss)
        return warning

    def _compared(self, loss: float) -> str | None:
        before = fmean(self._losses)
        self._rose.append(loss > RISE * before and loss > max(self._losses))
        rose, merges = sum(self._rose), len(self._rose)
        if merges < FEWEST_MERGES or 3 * rose < 2 * merges or not self._rose[-1]:
            return None
        self._has_warned = True
        return (
            f"{rose} of the last {merges} merges made the loss more than twice as high, the last "
            f"{before:.3g} -> {loss:.3g}: in the {self._period} steps of {self._setting} nodes go "
            "far from each other, as on private shards of data; recommended is "
            f"{self._setting} {self._period // SHORTER}"
        )
