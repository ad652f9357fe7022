"""Learning rates that differ between nodes: high rates to explore, and low rates to converge.

With `linear`, the base rate is the arithmetic mean of all rates. With `power`, it is the geometric
mean.

Source: LSGD, Y. Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep
Learning Models (2019), whose workers may have different learning rates.
"""

from __future__ import annotations

from typing import Literal

Spread = Literal["none", "linear", "power"]


def lr_scale(spread: Spread, index: int, nodes: int) -> float:
    """Return the factor by which a node multiplies its learning rate.

    u rises evenly from -1 (first node) to 1 (last node). The factor is 1 for `none`, 1 + u/2 for
    `linear` (0.5 to 1.5), and 2^u for `power` (0.5 to 2). A single node has u = 0.

    >>> [lr_scale("linear", index, nodes=3) for index in range(3)]
    [0.5, 1.0, 1.5]
    >>> [lr_scale("power", index, nodes=3) for index in range(3)]
    [0.5, 1.0, 2.0]
    """
    if spread == "none" or nodes == 1:
        return 1.0
    u = 2.0 * index / (nodes - 1) - 1.0
    return 1.0 + u / 2.0 if spread == "linear" else float(2.0**u)
