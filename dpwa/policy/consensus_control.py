"""Consensus control: mix more while the nodes are too far apart for the steps they take.

    mix once more while  distance > q * EMA(|step|)

Training tolerates a disagreement of about the size of its own steps; below that, more mixing gains
nothing, above it the models get worse.  Source: L. Kong, T. Lin, A. Koloskova, M. Jaggi and
S. U. Stich, Consensus Control for Decentralized Deep Learning (2021), where the norm is that of the
gradient; with the norm of the step, q needs no tuning to the learning rate.

>>> control = ConsensusControl(q=1.0)
>>> control.observed(2.0)
>>> control.wants_more(3.0, extra_rounds=0), control.wants_more(1.0, extra_rounds=1)
(True, False)
"""

from __future__ import annotations

import math


class ConsensusControl:
    """The rule of one node. Not thread-safe."""

    def __init__(self, q: float, smoothing: float = 0.9, most: int = 1) -> None:
        """Keep the nodes within `q` mean step norms of each other, by `most` extra rounds a step.

        `smoothing` is the share of the old mean that each step keeps.
        """
        self._q = q
        self._smoothing = smoothing
        self._most = most
        self._sum = 0.0
        self._weight = 0.0

    @property
    def step_norm(self) -> float | None:
        """The exponential moving average of the step norms, without bias; `None` before any."""
        return self._sum / self._weight if self._weight else None

    def observed(self, step_norm: float | None) -> None:
        """Learn the norm of a step; one that is unknown or not finite is ignored."""
        if step_norm is None or not math.isfinite(step_norm):
            return
        # An average that starts at 0 is too small at first; its total weight corrects that.
        self._sum = self._smoothing * self._sum + (1.0 - self._smoothing) * step_norm
        self._weight = self._smoothing * self._weight + (1.0 - self._smoothing)

    def wants_more(self, distance: float | None, extra_rounds: int) -> bool:
        """Tell whether to mix once more; never for a distance that is unknown or not finite."""
        if distance is None or not math.isfinite(distance) or self.step_norm is None:
            return False
        return extra_rounds < self._most and distance > self._q * self.step_norm
