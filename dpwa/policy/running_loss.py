"""The running mean of a training loss, by which a leader is chosen.

Mean over the last `window` measured losses, divided by how many there are: a slow worker, whose
window is half filled, must not look twice as good as it is.  Source: LSGD (Teng et al., 2019),
where the window is called averaging size.

The sum is kept as an exact integer, in units of the smallest number above 0 that a float can hold.
So an addition is taken back without a trace, and the mean never drifts however long the run.

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
    """The mean of the last `window` losses that were measured.

    Raises:
        UserError: the window is not at least 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise UserError(f"the window of a running loss is {window}; expected at least 1")
        self._window = window
        self._losses: deque[float] = deque()
        self._total = 0  # of those that are finite, in units
        self._infinite = 0

    def add(self, loss: float | None) -> None:
        """Take one more loss in, and the oldest out if the window was full; `None` is ignored."""
        if loss is None:
            return
        if len(self._losses) == self._window:
            self._count(self._losses.popleft(), -1)
        self._losses.append(loss)
        self._count(loss, 1)

    @property
    def mean(self) -> float | None:
        """The mean of what is there, correctly rounded; `None` when nothing was measured.

        It is `inf` as long as a loss that is not finite is in the window.
        """
        if not self._losses:
            return None
        if self._infinite:
            return math.inf
        return self._total / (len(self._losses) << _UNIT_BITS)

    def _count(self, loss: float, sign: int) -> None:
        if math.isfinite(loss):
            self._total += sign * _in_units(loss)
        else:
            self._infinite += sign


def _in_units(loss: float) -> int:
    numerator, denominator = loss.as_integer_ratio()  # the denominator is a power of 2
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length())
