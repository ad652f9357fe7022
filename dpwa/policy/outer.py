"""Outer optimizer steps of random node pairs, and the hyperparameters that keep these stable.

Every node i trains for many steps from its own phi_i to x_i. Then it takes an outer step with one
partner j. There are two kinds of outer steps.

NoLoCo, with means over the pair (i, j), and x = phi afterwards:

    m = alpha*m + beta*mean(x - phi) + gamma*(mean(phi) - phi_i);    phi_i += m

Nesterov, as in DiLoCo, but with the mean over a pair instead of all nodes. The momentum mu is that
of torch.optim.SGD. With mu = 0 and lr = 1, it is plain local SGD:

    D = phi_i - (x_i + x_j)/2;    v = mu*v + D;    phi_i -= lr*(D + mu*v)

Whether momentum drives the nodes apart depends only on their disagreement. So assume that they do
not train, x = phi. Let e be the difference of a node's phi from the mean, v its momentum, and the
partner an independent random node. Then the moments (E ee, E ev, E vv) of the next round are a
fixed 3x3 matrix A times those of this round. The nodes are stable in mean square if and only if the
spectral radius of A is below 1. A maps moments to moments, so (Perron and Frobenius) its largest
eigenvalue is real and passes 1 where det(I - A) = 0:

    NoLoCo     gamma < 2*(1 - alpha^2)
    Nesterov   lr^2*mu*(1 + 2*mu)/4 + lr*(1/2 - mu^2) - (1 - mu^2) < 0

An independent partner is the limit of many nodes. With few nodes, the limits are a little higher.
The default of DiLoCo, lr 0.7 with momentum 0.9, is just stable. NoLoCo with that momentum and its
usual gamma of 0.7 is unstable:

>>> [round(nesterov_limit(momentum), 2) for momentum in (0.0, 0.5, 0.9)]
[2.0, 1.3, 0.85]
>>> [round(noloco_limit(alpha), 2) for alpha in (0.0, 0.5, 0.9)]
[2.0, 1.5, 0.38]

Sources: J. Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training Method for Large
Models (2025); A. Douillard et al., DiLoCo: Distributed Low-Communication Training of Language
Models (2023). The limits are dpwa's own computation.
"""

from __future__ import annotations

import math


def noloco_limit(alpha: float) -> float:
    """Return the smallest gamma with which NoLoCo on random pairs is unstable: 2*(1 - alpha^2)."""
    return 2.0 * (1.0 - alpha**2)


def nesterov_limit(momentum: float) -> float:
    """Return the smallest outer learning rate that makes Nesterov in random pairs unstable."""
    mu = momentum
    root = math.sqrt((0.5 + mu) ** 2 - mu**3 * (1 + mu))
    return 2.0 * (1.0 - mu**2) / (0.5 - mu**2 + root)
