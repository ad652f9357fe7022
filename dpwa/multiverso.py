"""Tables that all workers share, with the names of classes and functions of Multiverso.

    import dpwa.multiverso as mv

    mv.init()                                  # reads DPWA_NAME and DPWA_CONFIG, see `dpwa launch`
    table = mv.MatrixTableHandler(1000, 64)
    table.add(gradients, row_ids)
    rows = table.get(row_ids)
    mv.barrier()
    mv.shutdown()

There are no server processes, because the workers hold the tables themselves. So any process may
die, and the others continue. Where Multiverso fails a check, this module raises a `DpwaError`.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from dpwa.config import ConfigSource
from dpwa.connection import DpwaConnection
from dpwa.errors import DpwaError, TableLostError, UserError
from dpwa.tables.node_tables import Tables
from dpwa.tables.rows import as_array, as_integers
from dpwa.tables.table import PendingGet, SyncedArray

if TYPE_CHECKING:
    from dpwa.adapters.tables import ModuleParameterManager as _ModuleParameterManager

log = logging.getLogger("dpwa.tables")


class _Session:
    def __init__(self, name: str, config: ConfigSource, *, sync: bool) -> None:
        with ExitStack() as stack:
            self.connection = stack.enter_context(DpwaConnection(name, config))
            self.tables = Tables(self.connection, sync=sync)
            stack.pop_all()
        self.shared: list[SharedVariable] = []  # created by `mv_shared`

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the workers in `nodes`. Raises `UserError` without `nodes`."""
        names = tuple(node.name for node in self.connection.node.config.nodes)
        if not names:
            raise UserError(
                "the number of a worker is its position in `nodes`, but the configuration has no "
                "`nodes`. List all workers in `nodes` [DPWA-E305]"
            )
        return names

    def close(self) -> None:
        try:
            self.tables.barrier()
        except TableLostError:
            raise
        except DpwaError as error:
            log.warning("not all workers have reached shutdown: %s [DPWA-W038]", error.text)
        finally:
            self.tables.close()
            self.connection.close()


_session: _Session | None = None


def init(sync: bool = False, name: str | None = None, config: ConfigSource | None = None) -> None:
    """Join the other workers as the node `name` of the configuration `config`.

    Args:
        sync: whether all workers call `add` and `get` in the same order and number. Then the i-th
            `get` of all workers returns the same values, which include all i-th additions.
        name: the name of this node. By default, DPWA_NAME.
        config: a path to a YAML file, a mapping, or a `Config`. By default, DPWA_CONFIG.

    Raises:
        UserError: neither the argument nor the variable is given, or `init` was called before.
        ConfigError: the configuration has mistakes.
    """
    global _session
    if _session is not None:
        raise UserError("dpwa.multiverso.init was called before. Call shutdown first [DPWA-E185]")
    found = name or _variable("DPWA_NAME", "name"), config or _variable("DPWA_CONFIG", "config")
    _session = _Session(*found, sync=sync)


def shutdown() -> None:
    """Wait for all workers, and leave. Without `init`, this has no effect.

    It does not wait for workers that do not call it within `collective_timeout_s`.

    Raises:
        TableLostError: the others have continued without this worker. This worker has left anyway.
    """
    global _session
    if _session is not None:
        session, _session = _session, None
        session.close()


def barrier() -> None:
    """Wait until all workers have called `barrier`. A later `get` includes every earlier `add`.

    Raises:
        TableTimeoutError: a worker has not arrived within `collective_timeout_s`.
    """
    _now().tables.barrier()


def workers_num() -> int:
    """Return the number of workers in `nodes`. Raises `UserError` without `nodes`."""
    return len(_now().names)


num_workers = workers_num


def worker_id() -> int:
    """Return the position of this worker in the configuration, counted from 0.

    Raises `UserError` if the configuration has no `nodes`.
    """
    session = _now()
    return session.names.index(session.connection.name)


def server_id() -> int:
    """Return the same number as `worker_id`, because each worker holds a part of the tables."""
    return worker_id()


def is_master_worker() -> bool:
    """Return whether this worker is the living worker with the lowest number."""
    session = _now()
    return session.tables.members[:1] == (session.connection.name,)


class ArrayTableHandler:
    """A vector that all workers share. All workers make the same tables in the same order.

    Data must have `size` values, in any shape.

    Args:
        size: the number of values.
        init_value: the first values. Only those of worker 0 count.
        options: `dtype` (float32 or float64), `updater` (default, sgd, momentum, adagrad, or your
            own), `options` of the updater, and `replicas` (number of further copies, default 1).

    Raises:
        UserError: `init` was not called, or an argument is invalid.
        MismatchError: a worker makes a different table.
        TableTimeoutError: worker 0 does not make the table in time.
    """

    def __init__(self, size: int, init_value: Any = None, **options: Any) -> None:
        self._shape = (size,)
        self._table = _now().tables.array(size, _of_size(init_value, self._shape), **options)

    def get(self) -> np.ndarray:
        """Return the newest values, of shape (size,). See `dpwa.tables.table.ArrayTable.get`."""
        return self._table.get()

    def get_async(self) -> PendingGet:
        """Start a `get`, and return at once. `wait` of the returned object returns the values."""
        return self._table.get_async()

    def add(self, data: Any, sync: bool = False) -> None:
        """Add `data` to the vector. With `sync`, wait until the addition has taken effect."""
        self._table.add(_of_size(data, self._shape), sync=sync)


class MatrixTableHandler:
    """A matrix that all workers share. See `ArrayTableHandler`.

    Data must have the right number of values, either flat, row after row, or in the shape of rows.

    Args:
        num_row, num_col: the shape of the matrix.
        init_value: the first values. Only those of worker 0 count.
        options: as for `ArrayTableHandler`.
    """

    def __init__(self, num_row: int, num_col: int, init_value: Any = None, **options: Any) -> None:
        self._shape = num_row, num_col
        first = _of_size(init_value, self._shape)
        self._table = _now().tables.matrix(num_row, num_col, first, **options)

    def get(self, row_ids: Any = None) -> np.ndarray:
        """Return the matrix, of shape (num_row, num_col), or only its rows `row_ids` (from 0)."""
        return self._table.get(row_ids)

    def get_async(self, row_ids: Any = None) -> PendingGet:
        """Start a `get`, and return at once. `wait` of the returned object returns the values."""
        return self._table.get_async(row_ids)

    def add(self, data: Any, row_ids: Any = None, sync: bool = False) -> None:
        """Add `data` to all rows, or to the rows `row_ids`. Additions to one row are summed."""
        rows, columns = self._shape
        if row_ids is not None:
            rows = len(as_integers(row_ids, "row_ids"))
        self._table.add(_of_size(data, (rows, columns)), row_ids, sync=sync)


class KVTableHandler:
    """A shared table of values by keys. Keys are integers of 64 bits. See `ArrayTableHandler`.

    Args:
        num_col: the number of columns in a row. `None`: the value of a key is one number.
        options: as for `ArrayTableHandler`, and `default`, the value of keys without additions.
    """

    def __init__(self, num_col: int | None = None, **options: Any) -> None:
        self._table = _now().tables.key_value(num_col, **options)

    def get(self, keys: Any) -> np.ndarray:
        """Return the newest values of `keys`."""
        return self._table.get(keys)

    def add(self, keys: Any, data: Any, sync: bool = False) -> None:
        """Add `data` to the values of `keys`. Additions to the same key are summed."""
        self._table.add(keys, data, sync=sync)


class SharedVariable(SyncedArray):
    """An array of which each worker has its own copy. See `dpwa.tables.table`.

    Args:
        value: the first values. Only those of worker 0 count.
        options: as for `ArrayTableHandler`.

    Attributes:
        name: the name given in `mv_shared`.
    """

    name: str | None = None

    def __init__(self, value: Any, **options: Any) -> None:
        first = as_array(value, "value of a shared variable")
        table = _now().tables.array(first.size, first.reshape(-1), **options)
        super().__init__(table, first.shape)


def mv_shared(
    value: Any,
    name: str | None = None,
    strict: bool = False,  # noqa: ARG001
    allow_downcast: bool | None = None,  # noqa: ARG001
    borrow: bool = False,  # noqa: ARG001
    **options: Any,
) -> SharedVariable:
    """Return a `SharedVariable` that `sync_all_mv_shared_vars` synchronizes.

    The arguments after `value` are those of Theano's `shared`. `name` becomes an attribute. The
    others have no effect, because the value is copied.
    """
    session = _now()
    variable = SharedVariable(value, **options)
    variable.name = name
    session.shared.append(variable)
    return variable


def sync_all_mv_shared_vars() -> None:
    """Call `sync` of all variables that `mv_shared` has created, in the order of creation."""
    for variable in _now().shared:
        variable.sync()


class MVModelParamManager:
    """Synchronize the parameters of any model among all workers. A subclass reads and sets them.

    For a torch module, use `ModuleParameterManager`, which needs no subclass.

    Args:
        model: the model, kept as `self.model`. It starts with the parameters of worker 0.
        options: as for `ArrayTableHandler`.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        self.model = model
        self._variable = SharedVariable(self._collected(), **options)
        self._distribute()

    def get_all_param_values(self) -> list[np.ndarray]:
        """Return the parameters of `self.model` as arrays, always in the same order."""
        raise NotImplementedError

    def set_all_param_values(self, params: list[np.ndarray]) -> None:
        """Set the parameters of `self.model`, in the shapes of `get_all_param_values`."""
        raise NotImplementedError

    def sync_all_param(self) -> None:
        """Add this worker's changes to the shared parameters, and load the shared parameters."""
        self._variable.value[...] = self._collected()
        self._variable.sync()
        self._distribute()

    def _collected(self) -> np.ndarray:
        params = [as_array(param, "a parameter") for param in self.get_all_param_values()]
        self._forms = [(param.shape, param.dtype) for param in params]
        return np.concatenate([param.reshape(-1) for param in params])

    def _distribute(self) -> None:
        sizes = [math.prod(shape) for shape, _ in self._forms]
        parts = np.split(self._variable.value, np.cumsum(sizes)[:-1])
        self.set_all_param_values(
            [
                part.astype(dtype).reshape(shape)
                for part, (shape, dtype) in zip(parts, self._forms, strict=True)
            ]
        )


def ModuleParameterManager(module: Any, **options: Any) -> _ModuleParameterManager:  # noqa: N802
    """Synchronize the parameters of a module among all workers. See `dpwa.adapters.tables`."""
    from dpwa.adapters.tables import ModuleParameterManager as Manager

    return Manager(module, _now().tables, **options)


def _of_size(data: Any, shape: tuple[int, int] | tuple[int]) -> Any:
    """Return `data` as an array, in `shape` if the size fits. The table refuses other sizes."""
    if data is None:
        return None
    array = as_array(data, "values of a table")
    return array.reshape(shape) if array.size == math.prod(shape) else array


def _now() -> _Session:
    if _session is None:
        raise UserError(
            "dpwa.multiverso is not initialized. Call dpwa.multiverso.init() first [DPWA-E186]"
        )
    return _session


def _variable(variable: str, argument: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise UserError(
            f"dpwa.multiverso.init: pass `{argument}`, or start this program with `dpwa launch`, "
            f"which sets {variable} [DPWA-E185]"
        )
    return value
