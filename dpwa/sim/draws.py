"""Random numbers that depend only on the seed and the purpose, not on the order of calls.

Each purpose has one stream. For many nodes at once, a counter is hashed instead of advancing a
generator's state. The hash is the finaliser of SplitMix64 (Steele, Lea, Flood, Fast
Splittable Pseudorandom Number Generators, 2014). Box and Muller's method (1958) makes normal
numbers from uniform numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DOUBLE_BITS = 53

Words = NDArray[np.uint64]


def uniform(seed: int, *keys: ArrayLike) -> NDArray[np.float64]:
    """Return numbers in [0, 1), one for each combination of keys. Arrays are broadcast."""
    bits = _mixed(np.asarray(seed, dtype=np.uint64))
    for key in keys:
        bits = _mixed(bits ^ _mixed(np.asarray(key).astype(np.uint64)))
    numbers: NDArray[np.float64] = (bits >> np.uint64(64 - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS
    return numbers


def normal(seed: int, *keys: ArrayLike) -> NDArray[np.float64]:
    """Return numbers of a standard normal distribution, one for each combination of keys."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(seed, *keys, 0)))
    turned: NDArray[np.float64] = radius * np.cos(2.0 * np.pi * uniform(seed, *keys, 1))
    return turned


def _mixed(value: Words) -> Words:
    with np.errstate(over="ignore"):
        value = value + _STEP
        value = (value ^ (value >> np.uint64(30))) * _MIX_1
        value = (value ^ (value >> np.uint64(27))) * _MIX_2
    mixed: Words = value ^ (value >> np.uint64(31))
    return mixed


class Purpose(IntEnum):
    """The purposes of random numbers. Numbers for one do not change those for another."""

    SPEED = 1
    STEP = 2
    STRAGGLERS = 3
    BEHIND_NAT = 4
    PARTITION = 5
    START = 6
    KILL = 7
    LOSS = 8


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, *more])


def drawn_nodes(rng: np.random.Generator, nodes: int, count: int) -> NDArray[np.bool_]:
    """Pick `count` random nodes, and return a boolean mask of these nodes, shape (N,)."""
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[rng.choice(nodes, size=min(count, nodes), replace=False)] = True
    return mask


def share_of_nodes(nodes: int, share: float) -> int:
    """Return the number of nodes in a share. A share above 0 has at least one node."""
    return max(1, round(nodes * share)) if share > 0.0 else 0
