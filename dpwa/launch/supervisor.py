"""Runs all nodes side by side: passes on their output, sees them end, stops them together.

One thread does everything. Output is read only as fast as `on_line` takes it: a node that floods
waits on its full pipe, and no queue grows. The nodes are peers, so one that fails stops no other.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.errors import UserError
from dpwa.launch.audience import Audience, OnExit, OnLine, OnSignal
from dpwa.launch.environment import available_cores, node_cores, node_environments
from dpwa.launch.output import OutputPipe
from dpwa.launch.process import NodeProcess
from dpwa.launch.spec import LaunchSpec
from dpwa.launch.stopping import StopLadder, stop_on_signals

POLL_S = 0.05  # how soon the end of a process or a signal is noticed when nothing is printed
# When a node has ended, what it has started may still print, as in `exec > >(tee log)`: first it is
DRAIN_GRACE_S = 1.0  # left alone,
LEFTOVER_GRACE_S = 2.0  # then asked to end with SIGTERM, and then killed.


def run_nodes(
    spec: LaunchSpec,
    on_line: OnLine,
    *,
    on_exit: OnExit | None = None,
    on_signal: OnSignal | None = None,
) -> dict[str, int]:
    """Start every node of the spec, and return their exit codes by name when all have ended.

    SIGINT, SIGTERM or SIGHUP to this process stops them: SIGINT to all, SIGTERM to those that are
    left after 5 s, SIGKILL 2 s later; a second SIGINT kills at once. Processes that a node has
    started end with it: those that hold its output open have 1 s to finish it, then they get
    SIGTERM, and SIGKILL at most 2 s later; all others get SIGKILL. Shared memory of nodes that were
    killed is removed in the end.

    A callback cannot prevent a stop. The nodes get each signal before it is told of. A callback
    that raises then, or that takes longer than 1 s (0.2 s after a second SIGINT), is broken off by
    a KeyboardInterrupt if need be, and none is called again.

    Call it from the thread that lives longest: on Linux, each node's first process dies with it,
    even if it is killed. What that process has started (the programs that a shell runs) then lives
    on. In a thread other than the main one no signals are handled.

    Args:
        spec: what to run.
        on_line: called with (node, "stdout" or "stderr", line) for every line of output. If it
            raises, the nodes are stopped, and the exception goes to the caller.
        on_exit: called with (node, exit code) when a node has ended; negative is a signal.
        on_signal: called with (signal, nodes) when it was sent to the nodes still there.

    Raises:
        UserError: the command cannot be run. Nothing is left running.
        KeyboardInterrupt: a signal asked for a stop; all nodes have ended. A callback's exception
            is its cause.
    """
    _require_command(spec)
    clock = SystemClock()
    ladder = StopLadder(clock)
    audience = Audience(on_line, on_exit, on_signal, clock)
    supervisor = _Supervisor(audience, ladder, clock)
    with stop_on_signals(ladder, audience.busy_s):
        try:
            supervisor.start(spec)
            supervisor.watch()
        except BaseException as error:
            asked_to_stop = ladder.stopping
            supervisor.abandon()
            if asked_to_stop and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise
    if ladder.stopping:
        raise KeyboardInterrupt
    return {name: supervisor.exit_codes[name] for name in spec.names}


@dataclass
class _Watched:
    """A node that has not been reaped; `drain` runs from the end of its first process."""

    process: NodeProcess
    drain: Deadline | None = None
    leftovers: Deadline | None = None

    def silent(self) -> bool:
        return all(pipe.closed for pipe in self.process.outputs.values())


class _Supervisor:
    def __init__(self, audience: Audience, ladder: StopLadder, clock: Clock) -> None:
        self._audience = audience
        self._ladder = ladder
        self._clock = clock
        self._watched: list[_Watched] = []
        self.exit_codes: dict[str, int] = {}

    def start(self, spec: LaunchSpec) -> None:
        cores = available_cores()
        environments = node_environments(spec, os.environ, len(cores))
        placements = node_cores(spec, cores)
        for name, environment, placement in zip(spec.names, environments, placements, strict=True):
            process = NodeProcess(name, spec.command, environment, placement)
            self._watched.append(_Watched(process))

    def watch(self) -> None:
        """Return when every node has ended and its output has been passed on."""
        with selectors.DefaultSelector() as selector:
            for node in self._watched:
                for stream, pipe in node.process.outputs.items():
                    if not pipe.closed:
                        source = (pipe, node.process.name, stream)
                        selector.register(pipe, selectors.EVENT_READ, source)
            while self._watched:
                self._send_due_signal()
                for key, _ in selector.select(POLL_S):
                    self._read(selector, key)
                for node in tuple(self._watched):
                    self._check(selector, node)
        from dpwa.data.shared_memory import sweep  # now: the nodes need not wait for numpy

        sweep()  # what nodes that were killed have left

    def abandon(self) -> None:
        """Stop what is running without telling anybody: the audience itself has failed."""
        self._audience.mute()
        self._ladder.stop()
        self.watch()

    def _send_due_signal(self) -> None:
        number = self._ladder.next_signal()
        if number is None:
            return
        for node in self._watched:  # before anything that can fail or block
            node.process.send(number)
        self._audience.tell_signal(number, [node.process.name for node in self._watched])

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        pipe, name, stream = key.data
        lines = pipe.read_lines()
        if lines is None:
            lines = _closed(selector, pipe)
        self._audience.tell_lines(name, stream, lines)

    def _check(self, selector: selectors.BaseSelector, node: _Watched) -> None:
        if node.drain is None:
            if not node.process.has_ended():
                return
            node.drain = Deadline(self._clock, DRAIN_GRACE_S)
        if node.leftovers is None and node.drain.expired():
            node.process.send(signal.SIGTERM)
            node.leftovers = Deadline(self._clock, LEFTOVER_GRACE_S)
        # While anything of the group lives and prints, a pipe is open.
        if node.silent() or (node.leftovers is not None and node.leftovers.expired()):
            self._finish(selector, node)

    def _finish(self, selector: selectors.BaseSelector, node: _Watched) -> None:
        process = node.process
        process.send(signal.SIGKILL)
        self._watched.remove(node)
        code = self.exit_codes[process.name] = process.reap()
        endings = {
            stream: _closed(selector, pipe)
            for stream, pipe in process.outputs.items()
            if not pipe.closed
        }
        for stream, lines in endings.items():
            self._audience.tell_lines(process.name, stream, lines)
        self._audience.tell_exit(process.name, code)


def _closed(selector: selectors.BaseSelector, pipe: OutputPipe) -> list[str]:
    selector.unregister(pipe)
    return pipe.close()


def _require_command(spec: LaunchSpec) -> None:
    if not spec.command:
        raise UserError("no command was given to run")
    program = spec.command[0]
    search_path = spec.environment.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=search_path):
        return
    if Path(program).is_file():
        raise UserError(f"cannot run {program!r}: the file is not executable (python {program}?)")
    raise UserError(f"cannot run {program!r}: no such command")
