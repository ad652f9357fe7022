"""The names of the Multiverso binding: tables that all workers share.

    import dpwa.multiverso as mv

    mv.init()                                  # as `dpwa launch` has set DPWA_NAME and DPWA_CONFIG
    table = mv.MatrixTableHandler(1000, 64)
    table.add(gradients, row_ids)
    rows = table.get(row_ids)
    mv.barrier()
    mv.shutdown()

What differs: there are no server processes, the workers hold the tables themselves; so any process
may die, and the others go on. A failed check raises an error of `dpwa.errors`.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from dpwa.connection import ConfigSource, DpwaConnection
from dpwa.errors import DpwaError, TableLostError, UserError
from dpwa.tables.face import Tables
from dpwa.tables.rows import as_array
from dpwa.tables.shared_variable import SharedVariable as _SharedVariable

if TYPE_CHECKING:
    from dpwa.adapters.tables import ModuleParameterManager as _ModuleParameterManager

log = logging.getLogger("dpwa.tables")


class _Session:
    """What lies between `init` and `shutdown`."""

    def __init__(self, name: str, config: ConfigSource, *, sync: bool) -> None:
        with ExitStack() as stack:
            self.connection = stack.enter_context(DpwaConnection(name, config))
            self.tables = Tables(self.connection, sync=sync)
            stack.pop_all()
        self.names = tuple(node.name for node in self.connection.node.config.nodes)

    def close(self) -> None:
        try:
            self.tables.barrier()
        except TableLostError:
            raise
        except DpwaError as error:
            log.warning("not all workers have come to the end: %s", error)
        finally:
            self.tables.close()
            self.connection.close()


_session: _Session | None = None


def init(sync: bool = False, name: str | None = None, config: ConfigSource | None = None) -> None:
    """Take part, under a name of the configuration.

    Args:
        sync: whether all workers call `add` and `get` in the same order and number; then the i-th
            `get` of all workers returns the same, after all i-th additions.
        name: of this node; by default that of the variable DPWA_NAME.
        config: a path to a YAML file, a mapping, or a `Config`; by default DPWA_CONFIG.

    Raises:
        UserError: neither is given, or `init` was called before.
        ConfigError: the configuration has mistakes.
    """
    global _session
    if _session is not None:
        raise UserError("dpwa.multiverso.init was called already; call shutdown first")
    found = name or _variable("DPWA_NAME", "name"), config or _variable("DPWA_CONFIG", "config")
    _session = _Session(*found, sync=sync)


def shutdown() -> None:
    """Wait for all workers, and take part no more; without effect before `init`.

    Who does not come within `collective_timeout_s` is not waited for.

    Raises:
        TableLostError: the others have gone on without this worker; it has ended nevertheless.
    """
    global _session
    if _session is not None:
        session, _session = _session, None
        session.close()


def barrier() -> None:
    """Wait until all workers are here; a `get` after it sees every `add` before it.

    Raises:
        TableTimeoutError: somebody has not come within `collective_timeout_s`.
    """
    _now().tables.barrier()


def workers_num() -> int:
    """Return the number of workers of the configuration."""
    return len(_now().names)


num_workers = workers_num


def worker_id() -> int:
    """Return the place of this worker in the configuration, from 0."""
    session = _now()
    return session.names.index(session.connection.name)


def server_id() -> int:
    """Return the same as `worker_id`: each worker holds a part of the tables."""
    return worker_id()


def is_master_worker() -> bool:
    """Tell whether this is the first of the workers that are there: worker 0 unless it has died."""
    session = _now()
    return session.tables.members[:1] == (session.connection.name,)


class ArrayTableHandler:
    """A vector that all workers share. All of them make the same tables in the same order.

    Args:
        size: number of values.
        init_value: first values; only those of worker 0 count.
        options: `dtype` (float32, or float64), `updater` (default, sgd, momentum, adagrad, or your
            own), `options` of the updater, `replicas` (1: copies besides the first).

    Raises:
        UserError: before `init`, or that cannot be.
        MismatchError: another worker makes another table.
        TableTimeoutError: worker 0 does not make it in time.
    """

    def __init__(self, size: int, init_value: Any = None, **options: Any) -> None:
        self._table = _now().tables.array(size, init_value, **options)

    def get(self) -> np.ndarray:
        """Return the newest values; see `dpwa.tables.table.ArrayTable.get`."""
        return self._table.get()

    def add(self, data: Any, sync: bool = False) -> None:
        """Add to all values; with `sync`, return when that has taken effect."""
        self._table.add(data, sync=sync)


class MatrixTableHandler:
    """A matrix that all workers share; see `ArrayTableHandler`.

    Args:
        num_row, num_col: its shape.
        init_value: first values; only those of worker 0 count.
        options: as for `ArrayTableHandler`.
    """

    def __init__(self, num_row: int, num_col: int, init_value: Any = None, **options: Any) -> None:
        self._table = _now().tables.matrix(num_row, num_col, init_value, **options)

    def get(self, row_ids: Any = None) -> np.ndarray:
        """Return the newest values, or those of some rows, numbered from 0."""
        return self._table.get(row_ids)

    def add(self, data: Any, row_ids: Any = None, sync: bool = False) -> None:
        """Add to all rows, or to some; rows that are named several times are added up."""
        self._table.add(data, row_ids, sync=sync)


class KVTableHandler:
    """Values by keys, any integers of 64 bits; see `ArrayTableHandler`.

    Args:
        num_col: columns of a row; `None`: the value of a key is one number.
        options: as for `ArrayTableHandler`, and `default`, the value of keys never added to.
    """

    def __init__(self, num_col: int | None = None, **options: Any) -> None:
        self._table = _now().tables.key_value(num_col, **options)

    def get(self, keys: Any) -> np.ndarray:
        """Return the newest values of keys."""
        return self._table.get(keys)

    def add(self, keys: Any, data: Any, sync: bool = False) -> None:
        """Add to the values of keys; keys that are named several times are added up."""
        self._table.add(keys, data, sync=sync)


class SharedVariable(_SharedVariable):
    """An array of which each worker has its own copy; see `dpwa.tables.shared_variable`.

    Args:
        value: first values; those of worker 0 count.
        options: as for `ArrayTableHandler`.
    """

    def __init__(self, value: Any, **options: Any) -> None:
        first = as_array(value, "value of a shared variable")
        table = _now().tables.array(first.size, first.reshape(-1), **options)
        super().__init__(table, first.shape)


def ModuleParameterManager(module: Any, **options: Any) -> _ModuleParameterManager:  # noqa: N802
    """Keep the parameters of a torch module in step; see `dpwa.adapters.tables`."""
    from dpwa.adapters.tables import ModuleParameterManager as Manager

    return Manager(module, _now().tables, **options)


def _now() -> _Session:
    if _session is None:
        raise UserError("call dpwa.multiverso.init first (and nothing after shutdown)")
    return _session


def _variable(variable: str, argument: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise UserError(
            f"dpwa.multiverso.init: give `{argument}`, or start this program by `dpwa launch`, "
            f"which sets {variable}"
        )
    return value
