"""How a data set is cut into ranges of shuffled indices: alike on all nodes, without a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


@dataclass(frozen=True)
class DatasetRanges:
    dataset_size: int
    range_size: int  # the last range may have fewer
    shuffle: bool  # else the indices come as they are
    seed: int  # 0 to 2^32 - 1

    @property
    def count(self) -> int:
        return -(-self.dataset_size // self.range_size)

    def length(self, number: int) -> int:
        return min(self.range_size, self.dataset_size - number * self.range_size)

    def cut(self, order: np.ndarray, number: int) -> np.ndarray:
        """Return the indices of a range, of an order that `shuffled` has returned."""
        start = number * self.range_size
        return order[start : start + self.length(number)]


def shuffled(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Return the indices 0 to size - 1 in the order of an epoch, int64 of shape (size,).

    It is a permutation by `numpy.random.RandomState`, whose streams stay the same in all versions
    of NumPy (NEP 19): nodes with different versions compute it alike. The seed is 0 to 2^32 - 1.
    """
    order = np.arange(size, dtype=np.int64)
    if shuffle:
        np.random.RandomState([seed, epoch]).shuffle(order)
    return order
