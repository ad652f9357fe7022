"""The running mean of a training loss, by which a leader is chosen.

Mean over the last `window` measured losses, divided by how many there are: a slow worker, whose
window is half filled, must not look twice as good as it is. Source: LSGD (Teng et al., 2019), where
the window is called averaging size.

The sum is kept as an exact integer, in units of the smallest float above 0, so the mean never
drifts however long the run.

>>> loss = RunningLoss(window=3)
>>> for value in (9.0, 3.0, None, 2.0, 1.0):
...     loss.add(value)
>>> loss.mean
2.0
"""

from __future__ import annotations

import math
from collections import deque

from dpwa.errors import UserError

_UNIT_BITS = 1074  # every finite float is a whole number of 2**-1074


class RunningLoss:
    """The mean of the last `window` losses that were measured; a `UserError`
    for a window below 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise UserError(
                f"the window of a running loss is {window}; expected at least 1 [DPWA-E121]"
            )
        self._window = window
        self._losses: deque[float] = deque(maxlen=window)
        self._total = 0  # of those that are finite, in units
        self._infinite = 0

    def add(self, loss: float | None) -> None:
        """Take one more loss in, and the oldest out if the window was full; `None` is ignored."""
        if loss is None:
            return
        units, infinite = _in_units(loss)
        if len(self._losses) == self._window:
            old_units, old_infinite = _in_units(self._losses[0])
            units, infinite = units - old_units, infinite - old_infinite
        # One step for an interrupt, as nothing is called before the last.
        self._total, self._infinite = self._total + units, self._infinite + infinite
        self._losses.append(loss)

    @property
    def mean(self) -> float | None:
        """The mean, correctly rounded; `None`: nothing measured; `inf`: one loss is not finite."""
        if not self._losses:
            return None
        if self._infinite:
            return math.inf
        return self._total / (len(self._losses) << _UNIT_BITS)


def _in_units(loss: float) -> tuple[int, int]:
    if not math.isfinite(loss):
        return 0, 1
    numerator, denominator = loss.as_integer_ratio()  # the denominator is a power of 2
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length()), 0
