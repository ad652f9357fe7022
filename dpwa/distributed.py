"""The names of torch.distributed for collectives among peers, for programs that use those.

    import dpwa.distributed as dist

    dist.init_process_group("gloo")           # any backend: it is ZeroMQ
    dist.all_reduce(tensor)                   # in place
    tensor /= dist.get_world_size()
    dist.destroy_process_group()

Arguments are those of torch.distributed: its `ReduceOp`; `group`, which is `None` or `group.WORLD`;
and `async_op`, with which a call has ended when it returns. What is not here, a name or an
argument, is a `UserError` that says what is.

What differs: there is no master, so any process may die. The others get `dpwa.errors.PeerLost` and
go on with fewer members; `get_rank` and `get_world_size` follow: ranks are places in the present
list of members.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from dpwa.config import ConfigSource
from dpwa.connection import DpwaConnection
from dpwa.discovery.connect import find, load
from dpwa.errors import UserError

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")  # and "cpu:gloo,cuda:nccl"

Call = TypeVar("Call", bound=Callable[..., Any])

_connection: DpwaConnection | None = None
_patience_s: float | None = None
_calls: dict[str, Callable[..., Any]] = {}


class ReduceOp(Enum):
    """How values are reduced."""

    SUM = "sum"
    AVG = "mean"
    MAX = "max"
    MIN = "min"


class group:  # noqa: N801 - as torch.distributed calls it
    """The groups: there is one, of all."""

    WORLD = None


class Work:
    """What a call with `async_op=True` returns: it has ended."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Tell that it has ended."""
        return True


class MissingError(UserError, AttributeError):
    """A name or an argument of torch.distributed is not here."""


def __getattr__(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    raise _missing(name)


def _missing(what: str) -> MissingError:
    calls = [f"{name}({', '.join(signature(call).parameters)})" for name, call in _calls.items()]
    return MissingError(
        f"dpwa.distributed has no {what}; it has ReduceOp SUM, AVG, MAX and MIN, one group, and "
        f"{', '.join(calls)} [DPWA-E304]"
    )


def _as_of_torch(call: Call) -> Call:
    known = signature(call)
    _calls[call.__name__] = call

    @wraps(call)
    def checked(*given: Any, **named: Any) -> Any:
        try:
            arguments = known.bind(*given, **named).arguments
        except TypeError as error:
            raise _missing(f"such {call.__name__}: {error}") from None
        if arguments.get("group") is not None:
            raise _missing(f"group {arguments['group']!r}")
        if "timeout_s" in known.parameters:
            named.setdefault("timeout_s", _patience_s)
        result = call(*given, **named)
        return Work() if arguments.get("async_op") else result

    return cast("Call", checked)


@_as_of_torch
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
    """Take part, as a node of the configuration; see `dpwa.connect` for where that is looked for.

    Args:
        name: of this node; by default as the launcher has it. A backend of torch is none.
        config: a path to a YAML file, a mapping, or a `Config`; by default as the launcher has it.
        backend: without effect.
        init_method: likewise.
        timeout: of each call, in seconds if it is a number; by default `collective_timeout_s`.
        world_size: without effect: `get_world_size` says who is there.
        rank: likewise.

    Raises:
        UserError: it is not known which node this is, or the process takes part already.
        ConfigError: the configuration has mistakes.
    """
    global _connection, _patience_s
    if _connection is not None:
        raise UserError(
            "init_process_group was called already; call destroy_process_group first [DPWA-E155]"
        )
    if isinstance(config, str) and "://" in config:  # the `init_method` of torch
        config = None
    if config is None and name is not None and name.lower().partition(":")[0] in (*BACKENDS, "cpu"):
        name = None
    found = load(find(config, name, {}, os.environ, Path.cwd()), {}, os.environ)
    _patience_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    _connection = DpwaConnection(*found)


def is_available() -> bool:
    """Tell that this can be used."""
    return True


def is_initialized() -> bool:
    """Tell whether this process takes part."""
    return _connection is not None


@_as_of_torch
def destroy_process_group(group: None = None) -> None:  # noqa: ARG001
    """Take part no more; without effect if the process does not."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None


@_as_of_torch
def get_rank(group: None = None) -> int:  # noqa: ARG001
    """Return the place of this node among the present members, from 0."""
    return _group().rank


@_as_of_torch
def get_world_size(group: None = None) -> int:  # noqa: ARG001
    """Return the number of members."""
    return _group().world_size


@_as_of_torch
def barrier(
    group: None = None,  # noqa: ARG001
    async_op: bool = False,  # noqa: ARG001
    device_ids: Any = None,  # noqa: ARG001
    *,
    timeout_s: float | None = None,
) -> None:
    """Wait until all members are here.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`.
    """
    _group().barrier(timeout_s)


@_as_of_torch
def all_reduce(
    tensor: Any,
    op: Any = ReduceOp.SUM,
    group: None = None,  # noqa: ARG001
    async_op: bool = False,  # noqa: ARG001
    *,
    timeout_s: float | None = None,
) -> None:
    """Reduce the tensors, or arrays, of all members, in place.

    Args:
        tensor: of the same structure, shapes and dtypes everywhere.
        op: a `ReduceOp`, of here or of torch.
        group: as said above.
        async_op: likewise.
        timeout_s: how long to wait for the others.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`; then the tensor
            is as it was.
        UserError: the value has numbers in it, which cannot be changed in place.
    """
    by_name = {known.name: known.value for known in ReduceOp}
    by_name |= {value: value for value in by_name.values()}
    name = getattr(op, "name", op)  # without torch, which has a class of its own
    if not isinstance(name, str) or name not in by_name:
        raise _missing(f"ReduceOp {name}")
    result, _ = _group().all_reduce(tensor, by_name[name], timeout_s)
    _require_in_place(tensor, result)


@_as_of_torch
def broadcast(
    tensor: Any,
    src: int,
    group: None = None,  # noqa: ARG001
    async_op: bool = False,  # noqa: ARG001
    *,
    timeout_s: float | None = None,
) -> None:
    """Give all members the tensor, or array, of the member of rank `src`, in place.

    Raises:
        PeerLost, LeftBehindError, CollectiveTimeoutError: as of `DpwaConnection`; then the tensor
            is as it was.
        UserError: there is no such rank, or the value has numbers in it.
    """
    group_of_all = _group()
    members = group_of_all.members
    if src not in range(len(members)):
        raise UserError(f"src must be a rank from 0 to {len(members) - 1}, not {src!r} [DPWA-E157]")
    result = group_of_all.broadcast(tensor, members[src], timeout_s)
    _require_in_place(tensor, result)


@_as_of_torch
def all_gather_object(
    object_list: Any,
    obj: Any = ...,
    group: None = None,  # noqa: ARG001
    *,
    timeout_s: float | None = None,
) -> list[object]:
    """Return the plain data of all members, in order of rank.

    Args:
        object_list: becomes the same, however long it was; or if there is no `obj`, what this
            member brings.
        obj: what this member brings.
        group: as said above.
        timeout_s: how long to wait for the others.
    """
    if obj is not ... and not isinstance(object_list, list):
        raise _missing(f"place for objects in {type(object_list).__name__}, only in a list")
    value = object_list if obj is ... else obj
    gathered = list(_group().all_gather(value, timeout_s).values())
    if obj is not ...:
        object_list[:] = gathered
    return gathered


def _group() -> DpwaConnection:
    if _connection is None:
        raise UserError("call dpwa.distributed.init_process_group first [DPWA-E156]")
    return _connection


def _require_in_place(given: object, result: object) -> None:
    if result is not given:
        raise UserError(
            "expected a tensor or an array that can be changed in place, "
            f"got {type(given).__name__} [DPWA-E158]"
        )
