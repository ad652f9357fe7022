"""The description of a launch, the engine that runs it (here or elsewhere), and its events.

A started process gets its node by environment variables and cores. It gets only DPWA_* variables,
because RANK, WORLD_SIZE and the like would make some training libraries start a process group of
their own.
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
    """One command, run once for each node.

    Attributes:
        command: the program and its arguments, the same for every node.
        config_path: the configuration that the nodes read.
        names: the nodes to start. A node's rank is its place in this order.
        environment: variables added to those of this process.
        restarts: maximum number of restarts of a node that fails.
        world: all nodes of the run, if others are started elsewhere. Ranks are places in it.
        spare: whether, with a command such as `python SCRIPT ARGUMENTS...`, a process that has
            imported torch waits to become the next node that is restarted (on this machine).
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
    """Lines that a node has written to `stdout` or `stderr`, without their ends."""

    node: str
    stream: str
    lines: Sequence[str]


@dataclass(frozen=True)
class NodeEnded:
    """A node has ended, after all its output was reported. A negative code is a signal.

    `told`: with code 0, the state of its training, see `dpwa.lifecycle.told_ending`.
    """

    node: str
    code: int
    told: int | str | None = None


Event = Printed | NodeEnded


class NodeEngine(Protocol):
    """Runs the processes of the nodes. One thread calls it, and only `poll` takes time."""

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that were started, and whose end `poll` has not reported."""
        ...

    def start(self, node: str) -> None:
        """Start or restart a node that does not run. Raises `UserError` if that is impossible."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes and to all that they have started.

        After SIGKILL each of them is reported as ended within seconds.
        """
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Wait at most this long for events. `UserError` if a node cannot be started after all."""
        ...

    def close(self) -> None:
        """Clean up when no node runs."""
        ...


CARRIED = ("OMP_NUM_THREADS", "PYTHONPATH")


def absolute_paths(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the DPWA_* variables that name files, as paths relative to a folder.

    A generated configuration is in a temporary folder, in which checkpoints must not be.
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

    Unless the user has set OMP_NUM_THREADS, each computes with max(1, core_count // nodes) threads.
    """
    shared = {**inherited, **spec.environment}
    shared["PYTHONUNBUFFERED"] = "1"  # a line is seen when it is printed
    shared["DPWA_CONFIG"] = str(spec.config_path.absolute())
    world = list(spec.world or spec.names)
    shared["DPWA_WORLD_SIZE"] = str(len(world))
    if world == list(spec.names):  # else others launch the rest of the run
        shared.setdefault("DPWA_RUN_ID", secrets.token_hex(8))
    if spec.names:
        shared.setdefault("OMP_NUM_THREADS", str(max(1, core_count // len(spec.names))))
    return [
        {**shared, "DPWA_NAME": name, "DPWA_RANK": str(world.index(name))} for name in spec.names
    ]
