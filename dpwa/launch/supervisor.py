"""Runs all nodes side by side: passes on their output, sees them end, stops them together.

One thread does everything. The nodes are peers, so one that fails stops no other.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dpwa.clock import Clock, SystemClock
from dpwa.errors import UserError
from dpwa.launch.audience import Audience, OnExit, OnLine, OnRestart, OnSignal
from dpwa.launch.engine import Event, NodeEnded, NodeEngine
from dpwa.launch.local import LocalEngine
from dpwa.launch.restarts import Restarts
from dpwa.launch.spec import LaunchSpec
from dpwa.launch.stopping import StopLadder, stop_on_signals

POLL_S = 0.05  # how soon the end of a process or a signal is noticed when nothing is printed


def run_nodes(
    spec: LaunchSpec,
    on_line: OnLine,
    *,
    on_exit: OnExit | None = None,
    on_signal: OnSignal | None = None,
    on_restart: OnRestart | None = None,
    engine: NodeEngine | None = None,
) -> dict[str, int]:
    """Start every node of the spec, and return their exit codes by name when all have ended.

    SIGINT, SIGTERM or SIGHUP to this process stops them: SIGINT to all, SIGTERM to those that are
    left after 5 s, SIGKILL 2 s later; a second SIGINT kills at once. Processes that a node has
    started end with it: those that hold its output open have 1 s to finish it, then they get
    SIGTERM, and SIGKILL at most 2 s later; all others get SIGKILL. Shared memory of nodes that were
    killed is removed in the end.

    A node whose process fails by itself is started again, `spec.restarts` times at most, after a
    pause of 1 s that doubles each time, up to 30 s. Who ends when a stop was asked for is not.

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
        on_exit: called with (node, exit code) when a node has ended, and is not started again;
            negative is a signal.
        on_signal: called with (signal, nodes) when it was sent to the nodes still there.
        on_restart: called with a `Restart` when a node has failed, and is to be started again.
        engine: where the nodes run; as processes of this machine by default.

    Raises:
        UserError: the command cannot be run. Nothing is left running.
        KeyboardInterrupt: a signal asked for a stop; all nodes have ended. A callback's exception
            is its cause.
    """
    clock = SystemClock()
    if engine is None:
        _require_command(spec)
        engine = LocalEngine(spec, clock)
    ladder = StopLadder(clock)
    audience = Audience(on_line, on_exit, on_signal, on_restart, clock)
    supervisor = _Supervisor(engine, Restarts(spec.restarts), audience, ladder, clock)
    with stop_on_signals(ladder, audience.busy_s):
        try:
            for name in spec.names:
                engine.start(name)
            supervisor.watch()
        except BaseException as error:
            asked_to_stop = ladder.stopping
            supervisor.abandon()
            if asked_to_stop and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise
        finally:
            engine.close()
    if ladder.stopping:
        raise KeyboardInterrupt
    return {name: supervisor.exit_codes[name] for name in spec.names}


class _Supervisor:
    def __init__(
        self,
        engine: NodeEngine,
        restarts: Restarts,
        audience: Audience,
        ladder: StopLadder,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._restarts = restarts
        self._audience = audience
        self._ladder = ladder
        self._clock = clock
        self.exit_codes: dict[str, int] = {}

    def watch(self) -> None:
        """Return when every node has ended and its output has been passed on."""
        while self._engine.running or self._restarts.waiting:
            self._send_due_signal()
            for name in self._restarts.due(self._clock.now()):
                self._engine.start(name)
            for event in self._engine.poll(POLL_S):
                self._tell(event)

    def abandon(self) -> None:
        """Stop what is running without telling anybody: the audience itself has failed."""
        self._audience.mute()
        self._ladder.stop()
        self.watch()

    def _send_due_signal(self) -> None:
        number = self._ladder.next_signal()
        if number is None:
            return
        self._restarts.give_up()
        nodes = list(self._engine.running)
        self._engine.send(number)  # before anything that can fail or block
        if nodes:
            self._audience.tell_signal(number, nodes)

    def _tell(self, event: Event) -> None:
        if not isinstance(event, NodeEnded):
            self._audience.tell_lines(event.node, event.stream, event.lines)
            return
        self.exit_codes[event.node] = event.code
        restart = None
        if not self._ladder.stopping:
            restart = self._restarts.after(event.node, event.code, self._clock.now())
        if restart is None:
            self._audience.tell_exit(event.node, event.code)
        else:
            self._audience.tell_restart(restart)


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
