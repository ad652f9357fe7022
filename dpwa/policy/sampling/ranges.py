"""How a data set is cut into ranges of shuffled indices: alike on all nodes, without a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


@dataclass(frozen=True)
class DatasetRanges:
    """The ranges that a data set is handed out in.

    Attributes:
        dataset_size: number of items, at least 1.
        range_size: items of a range, at least 1; the last range may have fewer.
        shuffle: whether each epoch has an order of its own; else the indices come as they are.
        seed: of the orders, 0 to 2^32 - 1.
    """

    dataset_size: int
    range_size: int
    shuffle: bool
    seed: int

    @property
    def count(self) -> int:
        """Number of ranges."""
        return -(-self.dataset_size // self.range_size)

    def length(self, number: int) -> int:
        """Return how many items a range has."""
        return min(self.range_size, self.dataset_size - number * self.range_size)

    def cut(self, order: np.ndarray, number: int) -> np.ndarray:
        """Return the indices of a range, of an order that `shuffled` has returned."""
        start = number * self.range_size
        return order[start : start + self.length(number)]


def shuffled(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Return the indices 0 to size - 1 in the order of an epoch, int64 of shape (size,).

    It is a permutation by `numpy.random.RandomState`, whose streams stay the same in all versions
    of NumPy (NEP 19): nodes with different versions compute it alike.

    Args:
        size: of the data set.
        seed: 0 to 2^32 - 1.
        epoch: counted from 0.
        shuffle: without, the indices come as they are.
    """
    order = np.arange(size, dtype=np.int64)
    if shuffle:
        np.random.RandomState([seed, epoch]).shuffle(order)
    return order
