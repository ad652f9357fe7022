"""One shard of a table: a contiguous range of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpwa.errors import ProtocolError
from dpwa.tables.rows import rows_shape
from dpwa.tables.state import ReplicatedState, check_ids, check_increasing, state_arrays
from dpwa.tables.updaters import Rows, Updater

_ALL = slice(None)


class ShardState(ReplicatedState):
    """The rows of a shard, counted from its first, with what belongs to them.

    Args:
        rows: number of rows of the shard; may be 0.
        columns: of a row; `None`: the table is a vector.
        dtype: float32 or float64.
        updater: applies the additions.
        memory: where the values live, and the first of them: contiguous, of shape (rows,) or
            (rows, columns). Zeros in memory of its own when `None`.

    Attributes:
        values: the newest values.

    Raises:
        UserError: another dtype.
        ValueError: the memory is of another shape or dtype.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None,
        dtype: Any,
        updater: Updater,
        memory: np.ndarray | None = None,
    ) -> None:
        super().__init__(columns, dtype, updater)
        shape = rows_shape(rows, columns)
        values = np.zeros(shape, self.dtype) if memory is None else memory
        if values.shape != shape or values.dtype != self.dtype or not values.flags.carray:
            raise ValueError(
                f"memory of shape {values.shape} and dtype {values.dtype}, expected writeable and "
                f"contiguous of shape {shape} and dtype {self.dtype}"
            )
        self.values: np.ndarray = values
        self._state = updater.new_state(shape, self.dtype)

    def read(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return a copy of some rows, or of all.

        Args:
            rows: of this shard, int64 of shape (n,), in any order; `None`: all.

        Returns:
            Of shape (n,) or (n, columns).

        Raises:
            ProtocolError: there is no such row.
        """
        self._check_whole()
        if rows is None:
            return np.array(self.values)
        check_ids(rows)
        self._check_bounds(rows)
        return np.take(self.values, rows, axis=0)

    def _update(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        where = self._where(rows, delta)
        self.updater.apply(self.values, self._state, where, delta)

    def _assign(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        self.values[self._where(rows, delta)] = delta

    def _where(self, rows: np.ndarray | None, delta: np.ndarray) -> Rows:
        self._check_delta(delta, len(self.values) if rows is None else len(rows))
        if rows is None:
            return _ALL
        check_increasing(rows)
        self._check_bounds(rows)
        return rows

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"values": self.values, **state_arrays(self._state)}

    def _resize(self, rows: int) -> None:
        if rows != len(self.values):
            raise ProtocolError(f"a state of {rows} rows came, expected {len(self.values)}")

    def _check_bounds(self, rows: np.ndarray) -> None:
        if rows.size and not (rows.min() >= 0 and rows.max() < len(self.values)):
            raise ProtocolError(
                f"rows {rows.min()} to {rows.max()} of a shard that has {len(self.values)}"
            )
