"""Outer steps on random pairs: which settings keep the nodes together.

Every node i trains for many steps from its own phi_i to x_i, then takes an outer step with one
partner j. Two such steps:

NoLoCo, means over the pair (i, j); x = phi afterwards:

    m = alpha*m + beta*mean(x - phi) + gamma*(mean(phi) - phi_i);    phi_i += m

Nesterov, that of DiLoCo with the mean over a pair in place of the mean over all; momentum mu as in
torch.optim.SGD; mu = 0 and lr = 1 is plain local SGD:

    D = phi_i - (x_i + x_j)/2;    v = mu*v + D;    phi_i -= lr*(D + mu*v)

Whether momentum drives the nodes apart is a matter of the disagreement alone, so take training
away, x = phi. Let e be how far a node's phi is from the mean, v its momentum, and the partner an
independent draw from the same swarm. Then the moments (E ee, E ev, E vv) of the next round are a
fixed 3x3 matrix times those of this one, and the swarm is stable in mean square if and only if the
spectral radius of that matrix is below 1. The matrix maps moments to moments, so (Perron and
Frobenius) its largest eigenvalue is real and passes 1 where det(I - A) = 0:

    NoLoCo     gamma < 2*(1 - alpha^2)
    Nesterov   lr^2*mu*(1 + 2*mu)/4 + lr*(1/2 - mu^2) - (1 - mu^2) < 0

An independent partner is the limit of many nodes; with few of them a little more is stable. The
default of DiLoCo, lr 0.7 with momentum 0.9, is stable, though not by much. NoLoCo with that
momentum and its usual gamma of 0.7 is not:

>>> [round(nesterov_limit(momentum), 2) for momentum in (0.0, 0.5, 0.9)]
[2.0, 1.3, 0.85]
>>> round(nesterov_radius(lr=0.7, momentum=0.9), 2)
0.92
>>> [round(noloco_limit(alpha), 2) for alpha in (0.0, 0.5, 0.9)]
[2.0, 1.5, 0.38]
>>> round(noloco_radius(alpha=0.9, gamma=0.7), 2)
1.1

Sources: J. Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training Method for Large
Models (2025); A. Douillard et al., DiLoCo: Distributed Low-Communication Training of Language
Models (2023). The limits are computed here.

Periods that are too long: nodes that learn different things, and forget them when they merge.

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

import numpy as np
from numpy.typing import NDArray


def noloco_limit(alpha: float) -> float:
    """Return the gamma from which on NoLoCo on random pairs is unstable: 2*(1 - alpha^2)."""
    return 2.0 * (1.0 - alpha**2)


def noloco_radius(alpha: float, gamma: float) -> float:
    """Return by which factor the disagreement V = sum |phi_i - mean|^2 changes each round."""
    return _spectral_radius(noloco_moments(alpha, gamma))


def noloco_moments(alpha: float, gamma: float) -> NDArray[np.float64]:
    """Return the 3x3 matrix of (E ee, E em, E mm), from one outer step to the next.

    With x = phi the step is m' = a*m - g*(e - e_j)/2, e' = e + m', where e_j, the partner's, has
    the moments of e and no correlation with e or m.
    """
    a, g = alpha, gamma
    return np.array(
        [
            [1 - g + g**2 / 2, a * (2 - g), a**2],
            [-g / 2 + g**2 / 2, a * (1 - g), a**2],
            [g**2 / 2, -a * g, a**2],
        ]
    )


def nesterov_limit(momentum: float) -> float:
    """Return the learning rate from which on the outer Nesterov on random pairs is unstable."""
    mu = momentum
    root = math.sqrt((0.5 + mu) ** 2 - mu**3 * (1 + mu))
    return 2.0 * (1.0 - mu**2) / (0.5 - mu**2 + root)


def nesterov_radius(lr: float, momentum: float) -> float:
    """Return by which factor the disagreement V = sum |phi_i - mean|^2 changes each round."""
    return _spectral_radius(nesterov_moments(lr, momentum))


def nesterov_moments(lr: float, momentum: float) -> NDArray[np.float64]:
    """Return the 3x3 matrix of (E ee, E ev, E vv), from one outer step to the next.

    With x = phi, D = (e - e_j)/2, so E DD = E eD = E ee/2 and E vD = E ev/2; and with
    p = lr*(1 + mu), q = lr*mu^2 the step is e' = e - p*D - q*v, v' = mu*v + D.
    """
    mu, p, q = momentum, lr * (1 + momentum), lr * momentum**2
    return np.array(
        [
            [1 - p + p**2 / 2, -2 * q + p * q, q**2],
            [(1 - p) / 2, mu - (p * mu + q) / 2, -q * mu],
            [0.5, mu, mu**2],
        ]
    )


def _spectral_radius(matrix: NDArray[np.float64]) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max())


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
