"""A connection to Ray, and actors in which nodes can run: one for each, where Ray has room."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpwa.errors import UserError
from dpwa.launch.environment import available_cores
from dpwa.launch.ray_node import RayNode, RayPlace

PATIENCE_S = 300.0  # for Ray to find room, which may have to start machines
SILENCE_S = 5.0  # after which the user is told what is waited for
POLL_S = 0.1
CONNECT_PATIENCE_S = 5.0
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

Resources = Mapping[str, float]


@contextmanager
def connected(address: str | None, needed: Resources) -> Iterator[None]:
    """Connect to Ray, until the end of the block.

    Args:
        address: of a cluster; `None`: that of RAY_ADDRESS, or of one that runs on this machine. If
            there is none, or it is `local`, Ray is started here, for as long as it is needed.
        needed: resources of all nodes. A Ray that is started here counts as many CPUs.

    Raises:
        UserError: Ray is not installed, the cluster does not answer, or this machine has no such
            resources.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install dpwa[ray]") from None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    named = address or os.environ.get("RAY_ADDRESS", "").strip()
    is_own = named == "local"
    if not is_own:
        _require_answer(named)
        try:
            ray.init(address=named or "auto", **quiet)
        except ConnectionError as error:
            if named:
                raise UserError(f"no Ray cluster at {named}: {last_line(error)}") from None
            is_own = True
    if is_own:
        cpus = max(len(available_cores()), math.ceil(needed.get("CPU", 0)))
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    try:
        if is_own:
            _require(needed, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def new_actor(resources: Resources, machine: str | None = None) -> Any:
    """Make an actor for a node; Ray starts it when there is room.

    Args:
        resources: of the node, by the names that Ray has for them.
        machine: the only one that will do.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": 0}
    options |= {_OPTIONS[name]: count for name, count in resources.items() if name in _OPTIONS}
    options["resources"] = {n: count for n, count in resources.items() if n not in _OPTIONS}
    if machine is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=False)
    return ray.remote(RayNode).options(**options).remote()


def place_actors(
    names: Sequence[str], resources: Resources, note: Callable[[str], None]
) -> dict[str, tuple[Any, RayPlace]]:
    """Let Ray find room for all nodes; return the actor and the place of each, by name.

    Where all are on one machine, their addresses are on loopback.

    Args:
        names: of the nodes.
        resources: of each.
        note: called with what is waited for, if it takes long.

    Raises:
        UserError: there is no room for 300 s, or an actor cannot be started.
    """
    import ray

    actors = {name: new_actor(resources) for name in names}
    asked = {name: actor.place.remote() for name, actor in actors.items()}
    began, is_told = time.monotonic(), False
    while True:
        ready, missing = ray.wait(list(asked.values()), num_returns=len(asked), timeout=POLL_S)
        places = _placed(ready)
        if not missing:
            break
        waited_s = time.monotonic() - began
        who = ", ".join(name for name, ref in asked.items() if ref in set(missing))
        what = ", ".join(f"{name}={count:g}" for name, count in resources.items())
        if waited_s > PATIENCE_S:
            raise UserError(f"Ray has found no room for {who} in {PATIENCE_S:g} s ({what} each)")
        if waited_s > SILENCE_S and not is_told:
            note(f"waiting for Ray to find room for {who} ({what} each)")
            is_told = True
    found = {name: places[ref] for name, ref in asked.items()}
    if len({place.host for place in found.values()}) == 1:
        found = {n: RayPlace(p.machine, "127.0.0.1", p.port) for n, p in found.items()}
    return {name: (actors[name], place) for name, place in found.items()}


def _placed(refs: Sequence[Any]) -> dict[Any, RayPlace]:
    import ray

    try:
        return dict(zip(refs, ray.get(list(refs)), strict=True))
    except ray.exceptions.RayError as error:
        raise UserError(f"Ray cannot start a node: {last_line(error)}") from None


def last_line(error: Exception) -> str:
    """Return the line of an error of Ray that says most: the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _require_answer(address: str) -> None:
    """Try an address, as Ray itself would for two minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_PATIENCE_S).close()
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster at {address}: {error}") from None


def _require(needed: Resources, there: Resources) -> None:
    lacking = [name for name, count in needed.items() if count > there.get(name, 0.0)]
    if lacking:
        what = ", ".join(f"{name}={needed[name]:g}" for name in lacking)
        has = ", ".join(f"{name}={there.get(name, 0.0):g}" for name in lacking)
        raise UserError(f"the nodes need {what} in all, but Ray on this machine has {has}")
