"""Elastic averaging (EASGD): each step moves N nodes and a common center toward each other.

    x_i -= alpha*(x_i - c);    c += sum alpha*(x_i - c)        (the right sides use old x and c)

Source: S. Zhang, A. Choromanska and Y. LeCun, Deep Learning with Elastic Averaging SGD (2015).

Without a gradient, sum x_i + c is constant, and the gap between the mean of the nodes and the
center is multiplied by 1 - (N + 1)*alpha. Let a gradient step have the learning rate lr, the loss
the curvature h, and e = lr*h. Then the mean of the nodes and the center follow the matrix

    | 1 - e - alpha    alpha         |
    | N*alpha          1 - N*alpha   |

Its smaller eigenvalue passes -1 at alpha = (4 - 2e) / (2 + 2N - eN). This holds for a gradient at
the old x. If the elastic step follows the gradient step, the limit is higher.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def elastic_limit(nodes: int, curvature: float = 0.0) -> float:
    """Return the smallest alpha that makes EASGD unstable, or 0 if gradient descent is unstable.

    `curvature` is e, the learning rate times the largest curvature of the loss.

    >>> elastic_limit(nodes=3), elastic_limit(nodes=3, curvature=1.0)
    (0.5, 0.4)
    """
    if curvature >= 2.0:
        return 0.0
    return (4.0 - 2.0 * curvature) / (2.0 + 2.0 * nodes - curvature * nodes)


def elastic_warning(alpha: float, nodes: int, curvature: float = 0.0) -> str | None:
    """Return a warning if alpha is unstable, or `None` if it is stable.

    >>> elastic_warning(alpha=0.9 / 8, nodes=8)
    >>> elastic_warning(alpha=0.25, nodes=8)
    'alpha 0.25 is unstable with 8 nodes: alpha must be below 0.222 (learning rate * curvature = 0)'
    """
    limit = elastic_limit(nodes, curvature)
    if alpha < limit:
        return None
    return (
        f"alpha {alpha:.3g} is unstable with {nodes} nodes: alpha must be below {limit:.3g} "
        f"(learning rate * curvature = {curvature:.3g})"
    )


def elastic_round(
    xs: NDArray[np.floating[Any]], center: NDArray[np.floating[Any]], alpha: float
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """Return the nodes' parameters, shape (N, d), and the center, shape (d,), after one step."""
    pull = alpha * (xs - center)
    return xs - pull, center + pull.sum(axis=0)
