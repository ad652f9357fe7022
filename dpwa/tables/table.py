"""Table classes of the public API. Rows have numbers or keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpwa.errors import UserError
from dpwa.runtime import Runtime
from dpwa.tables.directory import TablePlan
from dpwa.tables.key_value import as_keys, split_keys
from dpwa.tables.operations import User
from dpwa.tables.pending import AddedParts
from dpwa.tables.rows import ShardRows, accumulate, as_row_ids, as_values, check_size, split
from dpwa.tables.specs import TableSpec, packed


class Table:
    """Base class of all tables.

    Tables are numbered in the order in which a node makes them. This order is the same on all
    nodes. Of the `first` values, only those of the first member are used. If a node has made a
    different table, `add` and `get` may raise MismatchError later.
    """

    def __init__(
        self,
        user: User,
        number: int,
        spec: TableSpec,
        first: np.ndarray | None,
        *,
        is_in_step: bool,  # whether all members call `add` and `get` in the same order
    ) -> None:
        self._user = user
        self._number = number
        self.spec = spec
        self._is_in_step = is_in_step
        self._call_lock = user.runtime.call_lock()
        self._is_inside = False  # with `is_in_step`: between the two barriers of a `get`
        self._unended: tuple[bytes, np.ndarray] | None = None  # ids and values that were read there
        self._shards = self._make(first)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.spec.dtype)

    def _make(self, first: np.ndarray | None) -> int:
        user, deadline = self._user, self._user.deadline()
        made_in, has_put = b"", False
        while True:
            present = user.present(deadline)
            if made_in != present.view.identity:
                made_in, has_put = present.view.identity, False
                user.make(self._number, self.spec)
            plan = present.tables.get(self._number)
            if plan is None or plan.spec != self.spec:  # the engine reports a different table
                user.wait_for_news(self._number, present, deadline)
                continue
            user.pending.check(self._number)
            if plan.is_ready:
                return plan.shards
            if not has_put and user.is_first(present):
                # An earlier first member may have started to store values of its own.
                if first is not None or present.view.since:
                    user.submit_additions(
                        self._number, self._parts_of(plan, first), deadline, is_first=True
                    )
                    user.flush(self._number, deadline)
                user.announce(self._number)
                has_put = True
            user.wait_for_news(self._number, present, deadline)

    def _parts_of(self, plan: TablePlan, first: np.ndarray | None) -> AddedParts:
        if first is None:
            first = np.zeros(self.spec.shape(self.spec.rows), self.dtype)
        parts = split(None, plan.spec.shards(plan.shards)) if plan.spec.kind == "array" else []
        return [(part.shard, None, packed(None, first[part.where])) for part in parts]

    def _add(self, parts: list[ShardRows], delta: np.ndarray, *, sync: bool) -> None:
        user, deadline = self._user, self._user.deadline()
        given = [
            (
                part.shard,
                None if part.rows is None else len(part.rows),
                packed(part.rows, delta[part.where]),
            )
            for part in parts
        ]
        user.submit_additions(self._number, given, deadline)
        if sync:
            user.flush(self._number, deadline)

    def _read(self, parts: list[ShardRows], row_ids: np.ndarray | None, rows: int) -> np.ndarray:
        """Return rows. With `is_in_step`, a call continues the call that timed out before it."""
        with self._call_lock:
            user, deadline = self._user, self._user.deadline()
            ids = b"all" if row_ids is None else row_ids.tobytes()
            if self._unended is not None and self._unended[0] != ids:
                raise UserError(
                    "the previous `get` timed out. Call `get` again with the same rows [DPWA-E179]"
                )
            if not self._is_in_step:
                user.flush(self._number, deadline)
            elif not self._is_inside:
                user.barrier(deadline)
                user.waited_at, self._is_inside = None, True
            if self._unended is None:
                result = np.empty(self.spec.shape(rows), self.dtype)
                user.read_rows(self._number, self.spec, parts, result, deadline)
            else:
                result = self._unended[1]
            if self._is_in_step:
                self._unended = ids, result
                user.barrier(deadline)
                user.waited_at, self._is_inside, self._unended = None, False, None
            return result


class PendingGet:
    """A `get` in progress. See `ArrayTable.get_async`."""

    def __init__(self, get: Callable[[], np.ndarray], runtime: Runtime) -> None:
        self._get = get
        self._ended = runtime.event()
        self._values = np.empty(0)
        self._error: BaseException | None = None
        runtime.thread(self._run, "dpwa-get").start()

    @property
    def done(self) -> bool:
        """Whether `wait` returns or raises without blocking."""
        return self._ended.is_set()

    def wait(self) -> np.ndarray:
        """Wait for the result of `get`, and return it.

        Raises:
            The errors of `get`.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._values

    def _run(self) -> None:
        try:
            self._values = self._get()
        except BaseException as error:  # noqa: BLE001
            self._error = error
        finally:
            self._ended.set()


class ArrayTable(Table):
    """A table whose rows are numbered from 0, as a vector or a matrix."""

    def get(self, row_ids: Any = None) -> np.ndarray:
        """Return the newest values of all rows, or of the rows in `row_ids`.

        They include this node's earlier additions. After a `barrier`, they also include the earlier
        additions of all other nodes.

        Args:
            row_ids: an integer, list, range, array or tensor. A row may occur several times.

        Returns:
            An array of shape (n,) or (n, columns), in memory of its own.

        Raises:
            UserError: a row does not exist.
            TableTimeoutError: the answer did not arrive in time.
            TableLostError: all nodes that held the rows are gone.
        """
        self._user.check_open()
        ids = None if row_ids is None else as_row_ids(row_ids, self.spec.rows)
        rows = self.spec.rows if ids is None else len(ids)
        return self._read(split(ids, self.spec.shards(self._shards)), ids, rows)

    def get_async(self, row_ids: Any = None) -> PendingGet:
        """Start a `get`, and return at once, so that you can compute in the meantime.

        Args:
            row_ids: as for `get`.

        Raises:
            UserError: the tables have `sync=True`, so the order of calls matters.
        """
        self._user.check_open()
        if self._is_in_step:
            raise UserError(
                "get_async: the tables have `sync=True`. Call get() instead [DPWA-E187]"
            )
        ids = None if row_ids is None else as_row_ids(row_ids, self.spec.rows).copy()
        return PendingGet(lambda: self.get(ids), self._user.runtime)

    def add(self, data: Any, row_ids: Any = None, *, sync: bool = False) -> None:
        """Add `data` to all rows or `row_ids`. If a row occurs several times, its data are summed.

        Args:
            data: a number, list, array or tensor of the rows' shape. The values are copied.
            row_ids: as for `get`.
            sync: whether to wait until all copies of the rows have the addition.

        Raises:
            UserError: a row does not exist, or the shape is wrong.
            TableTimeoutError: the queue had no room in time, or no acknowledgement arrived in time.
            TableLostError: all nodes that held the rows are gone.
        """
        self._user.check_open()
        ids = None if row_ids is None else as_row_ids(row_ids, self.spec.rows)
        rows = self.spec.rows if ids is None else len(ids)
        delta = as_values(data, self.spec.shape(rows), self.dtype)
        if ids is not None:
            ids, delta = accumulate(ids, delta)
        self._add(split(ids, self.spec.shards(self._shards)), delta, sync=sync)


class KeyValueTable(Table):
    """A table whose rows have keys, which are integers of 64 bits."""

    def get(self, keys: Any) -> np.ndarray:
        """Return the values of keys. A key without additions has the default value.

        Args:
            keys: an integer, list, range, array or tensor.

        Returns:
            An array of shape (n,) or (n, columns).

        Raises:
            The errors of `ArrayTable.get`.
        """
        self._user.check_open()
        known = as_keys(keys)
        return self._read(split_keys(known, self._shards), known, len(known))

    def add(self, keys: Any, data: Any, *, sync: bool = False) -> None:
        """Add `data` to the values of `keys`. If a key occurs several times, its data are summed.

        Args:
            keys: as for `get`.
            data: numbers in the shape of the rows.
            sync: as for `ArrayTable.add`.

        Raises:
            The errors of `ArrayTable.add`.
        """
        self._user.check_open()
        known = as_keys(keys)
        delta = as_values(data, self.spec.shape(len(known)), self.dtype)
        known, delta = accumulate(known, delta)
        check_size(known.nbytes + delta.nbytes)
        self._add(split_keys(known, self._shards), delta, sync=sync)


class SyncedArray:
    """An array with a local copy on each worker. `sync` adds up the changes of all copies.

    Source: the shared variables of Multiverso's Python binding.

        variable.value -= learning_rate * gradient
        variable.sync()

    Args:
        table: a table with as many values as the array. All copies start with the values of the
            first member.
        shape: the shape of the array.

    Attributes:
        value: this worker's copy, which you change in place.
    """

    def __init__(self, table: ArrayTable, shape: tuple[int, ...]) -> None:
        self._table = table
        self.value: np.ndarray = table.get().reshape(shape)
        self._last = self.value.copy()

    def sync(self) -> np.ndarray:
        """Add local changes since the last call, set `value` to all workers' sum, and return it.

            add(current - last), then last = current = get()

        Raises:
            The errors of `ArrayTable.add` and `ArrayTable.get`.
        """
        self._table.add((self.value - self._last).reshape(-1))
        self._last[...] = self.value  # otherwise a failed `get` would add the changes twice
        self.value[...] = self._table.get().reshape(self.value.shape)
        self._last[...] = self.value
        return self.value
