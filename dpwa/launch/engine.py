"""What starts nodes, and says what they print and how they end: on this machine, or elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Printed:
    """Lines that a node has written.

    Attributes:
        node: its name.
        stream: `stdout` or `stderr`.
        lines: without their ends.
    """

    node: str
    stream: str
    lines: Sequence[str]


@dataclass(frozen=True)
class NodeEnded:
    """A node has ended, and all that it has printed was told of.

    Attributes:
        node: its name.
        code: exit code of its process; negative is a signal.
    """

    node: str
    code: int


Event = Printed | NodeEnded


class NodeEngine(Protocol):
    """Runs the processes of the nodes.

    One thread calls it. Nothing but `poll` takes time.
    """

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that were started, and of whose end `poll` has not told."""
        ...

    def start(self, node: str) -> None:
        """Start a node that does not run; it may have run before.

        Raises:
            UserError: it cannot be started.
        """
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes that run, and to all that they have started.

        After SIGKILL each of them is told of as ended within seconds.
        """
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return what has happened; wait for it, but no longer than this.

        Raises:
            UserError: a node cannot be started after all.
        """
        ...

    def close(self) -> None:
        """Clean up after the nodes, when none runs."""
        ...
