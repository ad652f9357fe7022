"""One node in a worker process of Ray: there, it is a process of the local engine."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dpwa.launch.engine import Event, NodeEnded
from dpwa.launch.local import LocalEngine
from dpwa.launch.ports import held_ports
from dpwa.launch.spec import LaunchSpec


@dataclass(frozen=True)
class RayPlace:
    """Where a node is.

    Attributes:
        machine: Ray's number of it.
        host: its address.
        port: one that nothing listens on.
    """

    machine: str
    host: str
    port: int


class RayNode:
    """The class of the actors. All of its methods run in the main thread of the worker.

    So the process of the node dies with the worker, however that dies (on Linux).
    """

    def __init__(self) -> None:
        self._held = ExitStack()
        self._files = ExitStack()
        self._engine: LocalEngine | None = None
        self._ended: list[Event] = []

    def place(self) -> RayPlace:
        """Return where this is; the port is held until the node starts."""
        import ray

        (port,) = self._held.enter_context(held_ports(1, "*"))
        machine = ray.get_runtime_context().get_node_id()
        return RayPlace(machine, ray.util.get_node_ip_address(), port)

    def start(self, spec: LaunchSpec, config: str, folder: str) -> Sequence[Event]:
        """Start the one node of a spec.

        Args:
            spec: its configuration is written anew.
            config: what is in that.
            folder: to run in, if this machine has it.

        Raises:
            UserError: the process cannot be started.
        """
        self.close()
        if Path(folder).is_dir():
            os.chdir(folder)
        made = self._files.enter_context(tempfile.TemporaryDirectory(prefix="dpwa-launch-"))
        path = Path(made, "dpwa.yaml")
        path.write_text(config, encoding="utf-8")
        (name,) = spec.names
        here = LaunchSpec(
            spec.command, path, spec.names, environment=spec.environment, world=spec.world
        )
        engine = LocalEngine(here)
        engine.start(name)
        self._engine = engine
        return []

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return what has happened since; of the end it tells each time."""
        if self._ended or self._engine is None:
            return self._ended
        events = self._engine.poll(timeout_s)
        self._ended = [event for event in events if isinstance(event, NodeEnded)]
        return events

    def send(self, number: int) -> None:
        """Send a signal to the node, and to all that it has started."""
        if self._engine is not None:
            self._engine.send(signal.Signals(number))

    def close(self) -> None:
        """Clean up after a node that has ended."""
        self._held.close()
        self._files.close()
        self._ended = []
        if self._engine is not None:
            self._engine.close()
            self._engine = None
