"""The description of a launch, the interface of the engines that run it, and their events.

Environment variables tell a started process which node it is. All of them begin with DPWA_, because
RANK, WORLD_SIZE and the like would make some training libraries start their own process group.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dpwa.config.schema import PATHS, PREFIX, variable_of


@dataclass(frozen=True)
class LaunchSpec:
    """A command to run once for each node.

    Attributes:
        command: the program and its arguments, the same for every node.
        config_path: the configuration that the nodes read.
        names: the nodes to start. A node's rank is its index in this order.
        environment: variables added to those of this process.
        restarts: maximum number of restarts of a node that fails.
        world: all nodes of the run, if some are started elsewhere. A rank is then an index in it.
        spare: whether a process that has imported torch waits to become the next restarted node.
            This needs a command such as `python SCRIPT ARGUMENTS...`, and nodes on this machine.
    """

    command: Sequence[str]
    config_path: Path
    names: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    world: Sequence[str] = ()
    spare: bool = False


@dataclass(frozen=True)
class Printed:
    """Lines that a node has written to `stdout` or `stderr`, without their newlines."""

    node: str
    stream: str
    lines: Sequence[str]


@dataclass(frozen=True)
class NodeEnded:
    """A node has ended, and all its output was reported. A negative code is a signal.

    If the code is 0, `told` is the state of the node's training. See `dpwa.lifecycle.told_ending`.
    """

    node: str
    code: int
    told: int | str | None = None


Event = Printed | NodeEnded


class NodeEngine(Protocol):
    """Starts and watches node processes. One thread calls the methods. Only `poll` takes time."""

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that were started, and whose end `poll` has not yet reported."""
        ...

    def start(self, node: str) -> None:
        """Start a node, or restart an ended node. Raises `UserError` if the start fails."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes and to all processes that they have started.

        After SIGKILL, `poll` reports the end of each node within seconds.
        """
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Wait at most `timeout_s` for events. Raises `UserError` if a node cannot be started."""
        ...

    def close(self) -> None:
        """Release all resources of the engine, once no node runs."""
        ...


CARRIED = ("OMP_NUM_THREADS", "PYTHONPATH")


def absolute_paths(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the DPWA_* path variables with absolute paths, resolved from `folder`.

    This keeps checkpoints out of the temporary folder that has a generated configuration.
    """
    return {
        name: str(folder / value)
        for name in map(variable_of, PATHS)
        if (value := inherited.get(name, "").strip())
    }


def carried(inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited.items()
        if name.startswith(PREFIX) or name in CARRIED
    }


def available_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def node_environments(
    spec: LaunchSpec, inherited: Mapping[str, str], core_count: int
) -> list[dict[str, str]]:
    """Return the environment of every node, in the order of `spec.names`.

    Unless the user has set OMP_NUM_THREADS, each node has max(1, core_count // nodes) threads.
    """
    shared = {**inherited, **spec.environment}
    shared["PYTHONUNBUFFERED"] = "1"  # so that each printed line is shown at once
    shared["DPWA_CONFIG"] = str(spec.config_path.absolute())
    world = list(spec.world or spec.names)
    shared["DPWA_WORLD_SIZE"] = str(len(world))
    if world == list(spec.names):  # otherwise, other launchers start the other nodes
        shared.setdefault("DPWA_RUN_ID", secrets.token_hex(8))
    if spec.names:
        shared.setdefault("OMP_NUM_THREADS", str(max(1, core_count // len(spec.names))))
    return [
        {**shared, "DPWA_NAME": name, "DPWA_RANK": str(world.index(name))} for name in spec.names
    ]
