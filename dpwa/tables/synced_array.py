"""A value that every worker changes on its own, and merges with the changes of the others."""

from __future__ import annotations

import numpy as np

from dpwa.tables.table import ArrayTable


class SyncedArray:
    """An array of which each worker has its own copy; `sync` adds up what all have done to theirs.

    Source: the shared variables of Multiverso's Python binding.

        variable.value -= learning_rate * gradient
        variable.sync()

    Args:
        table: of as many values as the array; the first member's are the first ones of all.
        shape: of the array.

    Attributes:
        value: this worker's copy, to be changed in place.
    """

    def __init__(self, table: ArrayTable, shape: tuple[int, ...]) -> None:
        self._table = table
        self.value: np.ndarray = table.get().reshape(shape)
        self._last = self.value.copy()

    def sync(self) -> np.ndarray:
        """Add what was changed here since the last time; take over the sum; return `value`.

            add(current - last);  last = current = get()

        Raises:
            As for `ArrayTable.add` and `ArrayTable.get`.
        """
        self._table.add((self.value - self._last).reshape(-1))
        self._last[...] = self.value  # or it would be added again when `get` fails
        self.value[...] = self._table.get().reshape(self.value.shape)
        self._last[...] = self.value
        return self.value
