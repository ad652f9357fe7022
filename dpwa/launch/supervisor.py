"""Starts, restarts and stops all nodes of a launch, and passes on their output.

One thread does everything. The nodes are peers, so a node that fails does not stop the others.

A node that has run for STEADY_S before it fails is restarted at once. After k earlier failures in a
row, the restart waits min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**(k - 1)) seconds. In this time,
services that the node needs can recover, and the node does not fill the screen.

>>> [pause_s(in_a_row) for in_a_row in range(8)]
[0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from dpwa.clock import Clock, SystemClock
from dpwa.errors import UserError
from dpwa.launch.engine import Event, LaunchSpec, NodeEnded, NodeEngine
from dpwa.launch.local import LocalEngine
from dpwa.launch.stopping import PASSED_ON, StopLadder, stop_on_signals
from dpwa.policy.finishing import ALONE

POLL_S = 0.05  # time until an end or a signal is noticed if no node prints
STEADY_S = 10.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

P = ParamSpec("P")


@dataclass(frozen=True)
class Restart:
    """The restart of a node that has failed.

    Attributes:
        node: the name of the node.
        code: the exit code of the node's process. A signal is negative.
        number: the number of this restart of the node, counted from 1.
        most: maximum number of restarts of each node.
        pause_s: seconds until the restart.
    """

    node: str
    code: int
    number: int
    most: int
    pause_s: float


class Restarts:
    """Plans at most `most` restarts of each node, and returns the nodes whose restart is due."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._early: Counter[str] = Counter()  # failures in a row before STEADY_S
        self._began: dict[str, float] = {}
        self._due: dict[str, float] = {}

    @property
    def waiting(self) -> Collection[str]:
        return self._due.keys()

    def began(self, node: str, now: float) -> None:
        self._began[node] = now

    def after(self, node: str, code: int, now: float) -> Restart | None:
        """Plan the restart of an ended node, or return `None` if no restart of the node is left."""
        if self._counts[node] >= self._most:
            return None
        self._counts[node] += 1
        self._early[node] = 0 if now - self._began[node] >= STEADY_S else self._early[node] + 1
        wait_s = pause_s(self._early[node])
        self._due[node] = now + wait_s
        return Restart(node, code, self._counts[node], self._most, wait_s)

    def pop_due(self, now: float) -> list[str]:
        """Return the nodes whose pause before a restart has ended. Each is returned once."""
        found = [node for node, at in self._due.items() if at <= now]
        for node in found:
            del self._due[node]
        return found

    def give_up(self) -> None:
        """Cancel all restarts, and plan no more restarts."""
        self._most = 0
        self._due.clear()


def pause_s(in_a_row: int) -> float:
    """Return the seconds to wait before a restart, after `in_a_row` early failures in a row."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(in_a_row - 1, 10)) if in_a_row else 0.0


def run_nodes(
    spec: LaunchSpec,
    on_line: Callable[[str, str, str], None],
    *,
    on_exit: Callable[[str, int], None] | None = None,
    on_signal: Callable[[signal.Signals, Sequence[str]], None] | None = None,
    on_restart: Callable[[Restart], None] | None = None,
    engine: NodeEngine | None = None,
) -> dict[str, int]:
    """Start all nodes of `spec`, wait until all have ended, and return exit codes by node name.

    SIGINT, SIGTERM, SIGHUP or SIGQUIT to this process stops the nodes. All nodes get that signal.
    Nodes that still run after 5 s get SIGTERM, and SIGKILL 2 s later. A second SIGINT kills all
    nodes at once. SIGUSR1, SIGUSR2 and SIGXCPU are passed on, and do not stop the nodes.

    When a node ends, the processes that it has started are ended, too. A process that still holds
    the node's output open gets SIGTERM after 1 s, and SIGKILL at most 2 s later. Other processes
    get SIGKILL. On Linux, after any signal, this includes processes with their own session, such as
    the workers of torchrun. At the end, the shared memory of killed nodes is removed.

    A node that ends its training without `finish` has failed, even if its process exits with 0. Its
    code is then 1. The code is also 1 for a node whose model is not finite at the end, or that has
    finished alone. A node that finished alone has not failed if all other nodes have failed.

    A node whose process fails, or that ends without `finish`, is restarted at most `spec.restarts`
    times. If the node has run for 10 s, it is restarted at once. Otherwise, the pause is 1 s, and
    doubles with each failure in a row, up to 30 s. A node is not restarted if it ends after a
    request to stop, or by a signal that was passed on. It is also not restarted if the other nodes
    have ended, and at least one of them has finished.

    A callback cannot prevent a stop. The nodes get each signal before a callback is called with it.
    After a request to stop, a callback may take 1 s (0.2 s after a second SIGINT). If it takes
    longer, KeyboardInterrupt is raised in it. If it raises an error, no callback is called again.

    Call this function from the thread that lives longest. On Linux, the first process of each node
    dies with that thread, even if the thread is killed. Programs that this first process has
    started, such as those of a shell, then continue. Only the main thread handles signals.

    Args:
        spec: the nodes and their command.
        on_line: called with (node, "stdout" or "stderr", line) for every line of output. If it
            raises, the nodes are stopped, and the exception goes to the caller.
        on_exit: called with (node, exit code) when a node has ended, and is not restarted. The code
            of a signal is negative.
        on_signal: called with (signal, nodes) after a signal was sent to the running nodes.
        on_restart: called with a `Restart` when a node has failed, and will be restarted.
        engine: runs the nodes. By default, they are processes on this machine.

    Raises:
        UserError: the command cannot be run. No process is left running.
        KeyboardInterrupt: a signal requested a stop, and all nodes have ended. If a callback has
            raised an exception, that exception is the cause.
    """
    clock = SystemClock()
    if engine is None:
        _require_command(spec)
        engine = LocalEngine(spec, clock)
    supervisor = _Supervisor(engine, spec, clock, on_line, on_exit, on_signal, on_restart)
    with stop_on_signals(supervisor.ladder, supervisor.callback_s):
        try:
            for name in spec.names:
                supervisor.start(name)
            supervisor.watch()
            supervisor.judge_those_alone()
        except BaseException as error:
            asked_to_stop = supervisor.ladder.stopping
            supervisor.abandon()
            if asked_to_stop and isinstance(error, Exception):
                raise KeyboardInterrupt from error
            raise
        finally:
            engine.close()
    if supervisor.ladder.stopping:
        raise KeyboardInterrupt
    return {name: supervisor.exit_codes[name] for name in spec.names}


class _Supervisor:
    def __init__(
        self,
        engine: NodeEngine,
        spec: LaunchSpec,
        clock: Clock,
        on_line: Callable[[str, str, str], None],
        on_exit: Callable[[str, int], None] | None,
        on_signal: Callable[[signal.Signals, Sequence[str]], None] | None,
        on_restart: Callable[[Restart], None] | None,
    ) -> None:
        self._engine = engine
        self._restarts = Restarts(spec.restarts)
        self._world = {*spec.names, *spec.world}
        self._has_others = self._world != {*spec.names}  # nodes that other launchers start
        self._clock = clock
        self._on_line = on_line
        self._on_exit = on_exit
        self._on_signal = on_signal
        self._on_restart = on_restart
        self._muted = False
        self._called_at: float | None = None
        self._passed_on: set[int] = set()
        self._finished: set[str] = set()  # nodes that have called `finish`
        self._alone: dict[str, str] = {}  # finished nodes that met no peer, with their messages
        self.ladder = StopLadder(clock)
        self.exit_codes: dict[str, int] = {}

    def start(self, name: str) -> None:
        self._engine.start(name)
        self._restarts.began(name, self._clock.now())

    def watch(self) -> None:
        while self._engine.running or self._restarts.waiting:
            self._send_due_signal()
            for name in self._restarts.pop_due(self._clock.now()):
                self._start_again(name)
            for event in self._engine.poll(POLL_S):
                self._tell(event)

    def abandon(self) -> None:
        """Stop the running nodes after a callback failed, and call no more callbacks."""
        self._muted = True
        if not self.ladder.stopping:
            self.ladder.came(signal.SIGINT)
        self.watch()

    def callback_s(self) -> float:
        """Return the seconds that the present callback has run, or 0 if no callback runs.

        Signal handlers and other threads may call this at any moment.
        """
        since = self._called_at
        return 0.0 if since is None else self._clock.now() - since

    def _send_due_signal(self) -> None:
        number = self.ladder.next_signal()
        if number is None:
            return
        if number in PASSED_ON:
            self._passed_on.add(number)
        else:
            self._restarts.give_up()
        nodes = list(self._engine.running)
        self._engine.send(number)  # first, because a callback can fail or block
        if nodes:
            self._call(self._on_signal, number, nodes)

    def _tell(self, event: Event) -> None:
        if not isinstance(event, NodeEnded):
            for line in event.lines:
                self._call(self._on_line, event.node, event.stream, line)
            return
        node, code, told = event.node, event.code, event.told
        self.exit_codes[node] = code
        if isinstance(told, str):
            self._finished.add(node)
        if isinstance(told, str) and told.startswith(ALONE):
            self._alone[node] = told
        elif isinstance(told, str) and told:
            self._blame(node, told)
        is_asked = self.ladder.stopping or -code in self._passed_on
        # The handler of a signal may have ended the process on purpose.
        has_left = isinstance(told, int) and not (self.ladder.stopping or self._passed_on)
        if has_left:
            self._blame(node, f"its training ended at update {told} without finish()")
        restart = None
        if (code or has_left) and not is_asked:
            restart = self._restarts.after(node, code, self._clock.now())
        if restart is None:
            self._call(self._on_exit, node, code)
        else:
            self._call(self._on_restart, restart)

    def judge_those_alone(self) -> None:
        """Count finished nodes that met no peer as failed, unless all other nodes have failed."""
        failed = {node for node, code in self.exit_codes.items() if code}
        for node, problem in self._alone.items():
            others = self._world - {node}
            if not others or not others <= failed:  # nodes started elsewhere have not failed
                self._blame(node, problem)

    def _blame(self, node: str, problem: str) -> None:
        self.exit_codes[node] = 1
        self._call(self._on_line, node, "stderr", f"dpwa launch: this node failed: {problem}")

    def _start_again(self, node: str) -> None:
        """Restart a failed node, unless some nodes have finished and no node runs any more."""
        if self._finished and not self._engine.running and not self._has_others:
            notice = "dpwa launch: no restart of this node, because the other nodes have finished"
            self._call(self._on_line, node, "stderr", notice)
            self._call(self._on_exit, node, self.exit_codes[node])
        else:
            self.start(node)

    def _call(self, callback: Callable[P, None] | None, *args: P.args, **kwargs: P.kwargs) -> None:
        if callback is None or self._muted:
            return
        self._called_at = self._clock.now()
        try:
            callback(*args, **kwargs)
        finally:
            self._called_at = None


def _require_command(spec: LaunchSpec) -> None:
    if not spec.command:
        raise UserError("no command was given. Write the command after `--` [DPWA-E076]")
    program = spec.command[0]
    search_path = spec.environment.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=search_path):
        if spec.spare and not _runs_python(spec.command):
            raise UserError(
                "a spare process needs `python SCRIPT.py ...` or `python -m MODULE ...`, without "
                f"options for Python itself (got {shlex.join(spec.command)}) [DPWA-E309]"
            )
        return
    if Path(program).is_file():
        raise UserError(
            f"cannot run {program!r}: it is not executable. Try `python {program}` [DPWA-E060]"
        )
    raise UserError(f"cannot run {program!r}: there is no such command [DPWA-E060]")


def _runs_python(command: Sequence[str]) -> bool:
    """Return whether a command starts with `python SCRIPT.py` or `python -m`."""
    program, script = [*command, ""][:2]
    return Path(program).name.startswith("python") and (script == "-m" or script.endswith(".py"))
