"""Nodes and generators that are drawn from a seed: one stream of chance for each purpose."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What chance is drawn for. What is drawn for one does not change what another gets."""

    SPEED = 1
    STEP = 2
    STRAGGLERS = 3
    BEHIND_NAT = 4
    PARTITION = 5
    START = 6
    KILL = 7
    LOSS = 8


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """Return a new generator."""
    return np.random.default_rng([seed, purpose, *more])


def drawn_nodes(rng: np.random.Generator, nodes: int, count: int) -> NDArray[np.bool_]:
    """Draw so many of the nodes; return for each whether it was drawn, shape (N,)."""
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[rng.choice(nodes, size=min(count, nodes), replace=False)] = True
    return mask


def share_of_nodes(nodes: int, share: float) -> int:
    """Return how many nodes a share is, at least one if it is above 0."""
    return max(1, round(nodes * share)) if share > 0.0 else 0
