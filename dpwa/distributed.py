"""The names of torch.distributed for collectives among peers, for programs that use those.

    import dpwa.distributed as dist

    dist.init_process_group()                 # as `dpwa launch` has set DPWA_NAME and DPWA_CONFIG
    dist.all_reduce(tensor)                   # in place
    tensor /= dist.get_world_size()
    dist.destroy_process_group()

What differs: there is no master, so any process may die. The others get `dpwa.errors.PeerLost` and
go on with fewer members; `get_rank` and `get_world_size` follow: ranks are places in the present
list of members.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Any

from dpwa.config import ConfigSource
from dpwa.connection import DpwaConnection
from dpwa.errors import UserError

_connection: DpwaConnection | None = None


class ReduceOp(Enum):
    """How values are reduced."""

    SUM = "sum"
    AVG = "mean"
    MAX = "max"
    MIN = "min"


def init_process_group(name: str | None = None, config: ConfigSource | None = None) -> None:
    """Take part, under a name of the configuration.

    Args:
        name: of this node; by default that of the variable DPWA_NAME.
        config: a path to a YAML file, a mapping, or a `Config`; by default DPWA_CONFIG.

    Raises:
        UserError: neither is given, or the process takes part already.
        ConfigError: the configuration has mistakes.
    """
    global _connection
    if _connection is not None:
        raise UserError("init_process_group was called already; call destroy_process_group first")
    _connection = DpwaConnection(name or _variable("DPWA_NAME"), config or _variable("DPWA_CONFIG"))


def is_initialized() -> bool:
    """Tell whether this process takes part."""
    return _connection is not None


def destroy_process_group() -> None:
    """Take part no more; without effect if the process does not."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None


def get_rank() -> int:
    """Return the place of this node among the present members, from 0."""
    return _group().rank


def get_world_size() -> int:
    """Return the number of members."""
    return _group().world_size


def barrier(timeout_s: float | None = None) -> None:
    """Wait until all members are here.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`.
    """
    _group().barrier(timeout_s)


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, timeout_s: float | None = None) -> None:
    """Reduce the tensors, or arrays, of all members, in place.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`; then the tensor
            is as it was.
        UserError: the value has numbers in it, which cannot be changed in place.
    """
    result, _ = _group().all_reduce(tensor, ReduceOp(op).value, timeout_s)
    _require_in_place(tensor, result)


def broadcast(tensor: Any, src: int, timeout_s: float | None = None) -> None:
    """Give all members the tensor, or array, of the member of rank `src`, in place.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`; then the tensor
            is as it was.
        UserError: there is no such rank, or the value has numbers in it.
    """
    group = _group()
    members = group.members
    if not 0 <= src < len(members):
        raise UserError(f"src must be a rank from 0 to {len(members) - 1}, not {src}")
    _require_in_place(tensor, group.broadcast(tensor, members[src], timeout_s))


def all_gather_object(value: object, timeout_s: float | None = None) -> list[object]:
    """Return the plain data of all members, in order of rank."""
    return list(_group().all_gather(value, timeout_s).values())


def _group() -> DpwaConnection:
    if _connection is None:
        raise UserError("call dpwa.distributed.init_process_group first")
    return _connection


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UserError(
            f"init_process_group needs a name and a configuration: pass them, or set {name} "
            "(`dpwa launch` does)"
        )
    return value


def _require_in_place(given: object, result: object) -> None:
    if result is not given:
        raise UserError(
            "expected a tensor or an array that can be changed in place, "
            f"got {type(given).__name__}"
        )
