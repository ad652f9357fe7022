"""The collectives of dpwa, with the function names and arguments of torch.distributed.

    import dpwa.distributed as dist

    dist.init_process_group("gloo")           # any backend has the same effect
    dist.all_reduce(tensor)                   # in place
    tensor /= dist.get_world_size()
    dist.destroy_process_group()

Arguments are those of torch.distributed. A `group` is `None` or `group.WORLD`. A call with
`async_op` has already ended when it returns. Other names of torch.distributed are missing.

The difference to torch.distributed is that there is no master, so any process may die. The others
get `dpwa.errors.PeerLost`, and continue with fewer members. Then `get_rank` and `get_world_size`
change, because a rank is a position in the list of the current members.
"""

from __future__ import annotations

import os
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from dpwa.config import ConfigSource
from dpwa.connection import DpwaConnection
from dpwa.discovery.connect import find, load
from dpwa.errors import UserError

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")  # and "cpu:gloo,cuda:nccl"

_connection: DpwaConnection | None = None
_timeout_s: float | None = None  # of each call without a timeout


class ReduceOp(Enum):
    """The operations with which `all_reduce` combines the values of all members."""

    SUM = "sum"
    AVG = "mean"
    MAX = "max"
    MIN = "min"


class group:  # noqa: N801 - as torch.distributed calls it
    """The groups. There is only one, which contains all members."""

    WORLD = None


class Work:
    """The result of a call with `async_op=True`. The call has already ended."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002
        """Return True at once, because the call has already ended."""
        return True

    def is_completed(self) -> bool:
        """Return True, because the call has ended."""
        return True


def init_process_group(
    name: str | None = None,
    config: ConfigSource | None = None,
    *,
    backend: str | None = None,  # noqa: ARG001
    init_method: str | None = None,  # noqa: ARG001
    timeout: timedelta | float | None = None,
    world_size: int = -1,  # noqa: ARG001
    rank: int = -1,  # noqa: ARG001
) -> None:
    """Join the group as the node `name` of `config`. See `dpwa.connect` for sources of `config`.

    Args:
        name: the name of this node. By default, the launcher's. A backend of torch is ignored.
        config: a path to a YAML file, a mapping, or a `Config`. By default, the launcher's.
        backend: no effect.
        init_method: no effect.
        timeout: time limit of each call, in seconds if it is a number. By default,
            `collective_timeout_s`.
        world_size: no effect. `get_world_size` returns the number of members.
        rank: no effect.

    Raises:
        UserError: the node of this process is unknown, or this was called before.
        ConfigError: the configuration has mistakes.
    """
    global _connection, _timeout_s
    if _connection is not None:
        raise UserError(
            "init_process_group was called before. Call destroy_process_group first [DPWA-E155]"
        )
    if isinstance(config, str) and "://" in config:  # the `init_method` of torch
        config = None
    if config is None and name is not None and name.lower().partition(":")[0] in (*BACKENDS, "cpu"):
        name = None
    found = load(find(config, name, {}, os.environ, Path.cwd()), {}, os.environ)
    _timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    _connection = DpwaConnection(*found)


def is_available() -> bool:
    """Return True, because this module can always be used."""
    return True


def is_initialized() -> bool:
    """Tell whether this process is a member of the group."""
    return _connection is not None


def destroy_process_group(group: None = None) -> None:  # noqa: ARG001
    """Leave the group. This has no effect if the process is not a member."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None


def get_rank(group: None = None) -> int:
    """Return the position of this node among the current members, counted from 0."""
    return _members_of(group).rank


def get_world_size(group: None = None) -> int:
    """Return the number of current members."""
    return _members_of(group).world_size


def barrier(
    group: None = None,
    async_op: bool = False,
    device_ids: Any = None,  # noqa: ARG001
    *,
    timeout_s: float | None = None,
) -> Work | None:
    """Wait until all members have called `barrier`.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as for `DpwaConnection`.
    """
    _members_of(group).barrier(_or_default(timeout_s))
    return Work() if async_op else None


def all_reduce(
    tensor: Any,
    op: Any = ReduceOp.SUM,
    group: None = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Work | None:
    """Reduce the tensors or arrays of all members, in place.

    Args:
        tensor: a tensor or array, with equal structure, shapes and dtypes on all members.
        op: a `ReduceOp` of this module or of torch.
        group: `None` or `group.WORLD`.
        async_op: whether to return a `Work`. The call has ended when it returns.
        timeout_s: maximum seconds to wait for the other members.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as for `DpwaConnection`. Then the tensor
            is unchanged.
        UserError: there is no such `op`, or the value contains plain numbers, which cannot be
            changed in place.
    """
    by_name = {known.name: known.value for known in ReduceOp}
    by_name |= {value: value for value in by_name.values()}
    name = str(getattr(op, "name", op))  # so that torch, whose class differs, is not imported
    timeout_s = _or_default(timeout_s)
    result, _ = _members_of(group).all_reduce(tensor, by_name.get(name, name), timeout_s)
    _require_in_place(tensor, result)
    return Work() if async_op else None


def broadcast(
    tensor: Any,
    src: int,
    group: None = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Work | None:
    """Copy the tensor or array of the member of rank `src` to all members, in place.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as for `DpwaConnection`. Then the tensor
            is unchanged.
        UserError: there is no such rank, or the value contains plain numbers.
    """
    connection = _members_of(group)
    members = connection.members
    if src not in range(len(members)):
        raise UserError(f"src must be a rank from 0 to {len(members) - 1}, not {src!r} [DPWA-E157]")
    result = connection.broadcast(tensor, members[src], _or_default(timeout_s))
    _require_in_place(tensor, result)
    return Work() if async_op else None


def all_gather_object(
    object_list: Any,
    obj: Any = ...,
    group: None = None,
    *,
    timeout_s: float | None = None,
) -> list[object]:
    """Return one object from each member, in order of rank. An object must be plain data.

    Args:
        object_list: a list that is set to the result, whatever its length. If `obj` is not given,
            it is the data of this member.
        obj: the data of this member.
        group: `None` or `group.WORLD`.
        timeout_s: maximum seconds to wait for the other members.
    """
    value = object_list if obj is ... else obj
    gathered = list(_members_of(group).all_gather(value, _or_default(timeout_s)).values())
    if obj is not ...:
        object_list[:] = gathered
    return gathered


def _members_of(group: object) -> DpwaConnection:
    if _connection is None:
        raise UserError(
            "dpwa.distributed is not initialized. Call init_process_group first [DPWA-E156]"
        )
    if group is not None:
        raise UserError(f"group: expected None or group.WORLD (got {group!r:.60}) [DPWA-E304]")
    return _connection


def _or_default(timeout_s: float | None) -> float | None:
    return _timeout_s if timeout_s is None else timeout_s


def _require_in_place(given: object, result: object) -> None:
    if result is not given:
        raise UserError(
            "expected a tensor, or an array that can be changed in place "
            f"(got {type(given).__name__}) [DPWA-E158]"
        )
