"""What is launched, what launches it (on this machine, or elsewhere), and what that reports."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True)
class LaunchSpec:
    """One command, run once for each node.

    Attributes:
        command: the program and its arguments, the same for every node.
        config_path: the configuration that the nodes read.
        names: the nodes to start; a node's rank is its place in this order.
        cpus: `pin` gives every node its own share of the cores this process may use.
        environment: variables added to those of this process.
        restarts: how often a node that fails is started again.
        world: all nodes of the run, if others are started elsewhere: ranks are places in it.
    """

    command: Sequence[str]
    config_path: Path
    names: Sequence[str]
    cpus: Literal["pin", "none"] = "none"
    environment: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    world: Sequence[str] = ()


@dataclass(frozen=True)
class Printed:
    """Lines that a node has written to `stdout` or `stderr`, without their ends."""

    node: str
    stream: str
    lines: Sequence[str]


@dataclass(frozen=True)
class NodeEnded:
    """A node has ended, after all its output was reported; a negative code is a signal.

    `problem`: why its training has not ended well, although its code is 0; else empty.
    """

    node: str
    code: int
    problem: str = ""


Event = Printed | NodeEnded


class NodeEngine(Protocol):
    """Runs the processes of the nodes. One thread calls it; nothing but `poll` takes time."""

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that were started, and whose end `poll` has not reported."""
        ...

    def start(self, node: str) -> None:
        """Start a node that does not run, maybe again; raises `UserError` if that is impossible."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes and to all that they have started.

        After SIGKILL each of them is reported as ended within seconds.
        """
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Wait at most so long for events; `UserError` if a node cannot be started after all."""
        ...

    def close(self) -> None:
        """Clean up when no node runs."""
        ...
