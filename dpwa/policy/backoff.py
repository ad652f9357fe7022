"""Back-off: a peer that fails again and again is left alone for longer and longer.

After the k-th failure in a row, k >= 3, it rests for a time drawn uniformly from

    [0, min(LONGEST_S, FIRST_S * 2**(k - 3))]

The whole time is drawn ("full jitter"), so that nodes that failed together do not come back
together. Two failures are no reason to wait: the network loses a connection now and then. Sources:
M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog (2015); RFC 8085, section 3.1.1.

>>> rests = BackOff()
>>> for _ in range(4):
...     rests = rests.failed(now=100.0, rng=random.Random(1))
>>> 100.0 <= rests.until <= 102.0
True
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

FORGIVEN = 2  # failures in a row
FIRST_S = 1.0
LONGEST_S = 60.0
MOST_DOUBLINGS = 40


@dataclass(frozen=True)
class BackOff:
    """Failures in a row of one peer. Every change returns a new value; a success, a new one."""

    failures: int = 0
    until: float = -math.inf  # when it may be asked again, in seconds on any clock

    def failed(self, now: float, rng: random.Random) -> BackOff:
        """Count a failure, and draw how long to rest."""
        failures = self.failures + 1
        longest_s = longest_rest_s(failures)
        return BackOff(failures, now + rng.uniform(0.0, longest_s) if longest_s else self.until)

    def rests(self, now: float) -> bool:
        return now < self.until


def longest_rest_s(failures: int) -> float:
    """Return the most that a rest lasts after so many failures in a row."""
    if failures <= FORGIVEN:
        return 0.0
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - FORGIVEN - 1, MOST_DOUBLINGS))
