"""Nodes as processes of this machine.

Output is read only as fast as it is asked for: a node that floods waits on its full pipe, and no
queue grows.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.launch.engine import Event, NodeEnded, Printed
from dpwa.launch.environment import available_cores, node_cores, node_environments
from dpwa.launch.output import OutputPipe
from dpwa.launch.process import NodeProcess
from dpwa.launch.spec import LaunchSpec

# When a node has ended, what it has started may still print, as in `exec > >(tee log)`: first it is
DRAIN_GRACE_S = 1.0  # left alone,
LEFTOVER_GRACE_S = 2.0  # then asked to end with SIGTERM, and then killed.


@dataclass
class _Watched:
    """A node that has not been reaped; `drain` runs from the end of its first process."""

    process: NodeProcess
    drain: Deadline | None = None
    leftovers: Deadline | None = None

    def is_over(self) -> bool:
        """Whether nothing of the group prints any more; while anything does, a pipe is open."""
        if self.leftovers is not None and self.leftovers.expired():
            return True
        return self.drain is not None and all(p.closed for p in self.process.outputs.values())


class LocalEngine:
    """Starts the nodes of a spec on this machine; on Linux they die with the thread that does."""

    def __init__(self, spec: LaunchSpec, clock: Clock | None = None) -> None:
        cores = available_cores()
        self._command = spec.command
        self._clock = SystemClock() if clock is None else clock
        environments = node_environments(spec, os.environ, len(cores))
        self._environments = dict(zip(spec.names, environments, strict=True))
        self._placements = dict(zip(spec.names, node_cores(spec, cores), strict=True))
        self._selector = selectors.DefaultSelector()
        self._watched: dict[str, _Watched] = {}

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that have not been reaped."""
        return self._watched.keys()

    def start(self, node: str) -> None:
        """Start the command of a node."""
        process = NodeProcess(node, self._command, self._environments[node], self._placements[node])
        self._watched[node] = _Watched(process)
        for stream, pipe in process.outputs.items():
            self._selector.register(pipe, selectors.EVENT_READ, (pipe, node, stream))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes, and to all that they have started."""
        for watched in self._watched.values():
            watched.process.send(number)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what has been printed, and who has ended."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            pipe, node, stream = key.data
            lines = pipe.read_lines()
            events.append(Printed(node, stream, self._close(pipe) if lines is None else lines))
        for watched in tuple(self._watched.values()):
            events += self._ending(watched)
        return events

    def close(self) -> None:
        """Remove the shared memory of nodes that were killed."""
        self._selector.close()
        from dpwa.data.shared_memory import sweep  # now: the nodes need not wait for numpy

        sweep()

    def _ending(self, watched: _Watched) -> Iterator[Event]:
        process = watched.process
        if watched.drain is None:
            if not process.has_ended():
                return
            watched.drain = Deadline(self._clock, DRAIN_GRACE_S)
        if watched.leftovers is None and watched.drain.expired():
            process.send(signal.SIGTERM)
            watched.leftovers = Deadline(self._clock, LEFTOVER_GRACE_S)
        if not watched.is_over():
            return
        process.send(signal.SIGKILL)
        del self._watched[process.name]
        code = process.reap()
        for stream, pipe in process.outputs.items():
            if not pipe.closed:
                yield Printed(process.name, stream, self._close(pipe))
        yield NodeEnded(process.name, code)

    def _close(self, pipe: OutputPipe) -> list[str]:
        self._selector.unregister(pipe)
        return pipe.close()
