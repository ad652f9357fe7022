"""Runs nodes as processes on this machine.

The output of a node is read only in `poll`. So a node that prints too much waits on its full pipe,
and no queue grows.
"""

from __future__ import annotations

import codecs
import ctypes
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.errors import UserError
from dpwa.launch.configs import held_folder
from dpwa.launch.engine import (
    Event,
    LaunchSpec,
    NodeEnded,
    Printed,
    available_cores,
    node_environments,
)
from dpwa.launch.stopping import PASSED_ON
from dpwa.lifecycle import ENDING, Closeable, told_ending

CHILD_SCRIPT = Path(__file__).with_name("child.py")
SPARE_SCRIPT = CHILD_SCRIPT.with_name("spare.py")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FORKED_S = 0.1  # wait for a spare process that is being forked, before it is ended
SPARE_AFTER_S = 3.0  # pause before a spare process starts, so that nodes start first
SPARE_AGAIN_S = 30.0  # pause after a spare process has ended by itself, or could not be started
CHUNK_BYTES = 64 * 1024
MAX_LINE_CHARS = 1024 * 1024  # a longer line is passed on in pieces, so that memory stays bounded
# When a node has ended, processes that it started may still print, as in `exec > >(tee log)`.
DRAIN_GRACE_S = 1.0  # time until they get SIGTERM
LEFTOVER_GRACE_S = 2.0  # time from SIGTERM until they get SIGKILL


class LineSplitter:
    """Turns chunks of bytes into whole lines of text.

    Bytes that are not UTF-8 become U+FFFD. A carriage return also ends a line, so that a progress
    bar does not become one endless line.
    """

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that these bytes complete, without their newlines."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(self._rest) >= MAX_LINE_CHARS:
            lines.append(self._rest)
            self._rest = ""
        return lines

    def finish(self) -> list[str]:
        """Return the last line as a list, or an empty list if the text ended with a newline."""
        *lines, last = (self._rest + self._decoder.decode(b"", final=True)).split("\n")
        self._rest = ""
        return [*lines, last] if last else lines


class OutputPipe:
    """The reading end of one stream of a process, which never blocks."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._splitter = LineSplitter()

    def fileno(self) -> int:
        return self._pipe.fileno()

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    def read_lines(self) -> list[str] | None:
        """Read a chunk. Return the complete lines, or `None` if the process closed the stream."""
        try:
            data = os.read(self._pipe.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return []
        return self._splitter.feed(data) if data else None

    def close(self) -> list[str]:
        """Close the pipe. Return the last line as a list, if it had no newline."""
        self._pipe.close()
        return self._splitter.finish()


class _Life(NamedTuple):
    parent: int
    group: int
    since: str


class Forked:
    """A process that a spare process has forked, with the methods of `Popen` that dpwa uses."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def start(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a command in a new session and process group.

    On Linux, the process dies with the thread that calls this function. Processes that the command
    has started do not.

    Raises:
        UserError: the system cannot start another process.
    """
    prepare = [sys.executable, "-I", "-S", str(CHILD_SCRIPT)]
    try:
        return subprocess.Popen(  # noqa: S603  (running the user's command is the task)
            [*prepare, str(os.getpid()), *command],
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"cannot start node {name}: {error.strerror} [DPWA-E059]") from None


class NodeProcess:
    """A node's process, which has its own session and process group.

    Ctrl-C on the terminal does not reach it. `send` reaches it and all processes that it started.

    Attributes:
        name: the node's name.
        outputs: its standard output and error, by the names `stdout` and `stderr`.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes] | Forked) -> None:
        self.name = name
        self._process = process
        self._strays: dict[int, _Life] = {}
        self.outputs = {
            "stdout": OutputPipe(cast(IO[bytes], process.stdout)),
            "stderr": OutputPipe(cast(IO[bytes], process.stderr)),
        }

    def send(self, number: signal.Signals, *, to_all: bool = False) -> None:
        """Send a signal to the node's first process and to the processes started by that process.

        Processes that have left its process group get the signal only if `to_all` is true.
        """
        if self._process.returncode is not None:
            return  # after the reaping, a different group may have this number
        # Some systems refuse this if only the unreaped process itself is left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        for pid in self.stray() if to_all else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def remember(self, living: Mapping[int, _Life]) -> None:
        """Record descendants that left the node's process group, such as the workers of torchrun.

        After the process has ended, it is unknown which processes it has started.
        """
        last = {self._process.pid}
        while last:
            last = {pid for pid, life in living.items() if life.parent in last}
            self._strays |= {p: living[p] for p in last if living[p].group != self._process.pid}

    def stray(self) -> list[int]:
        """Return the process ids of the recorded descendants that still live."""
        return [p for p, was in self._strays.items() if (it := _life(p)) and it.since == was.since]

    def has_ended(self) -> bool:
        """Return whether the node's first process has ended. Child processes may still live.

        The process is not reaped, so that no other group can get the number of its group.
        """
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def reap(self) -> int:
        """Wait for the end of the process, and return its exit code. A signal is negative."""
        return self._process.wait()

    def discard(self) -> None:
        """Kill the process, and close its output without reading it."""
        self.send(signal.SIGKILL)
        for pipe in self.outputs.values():
            pipe.close()
        self.reap()


@dataclass
class _Watched:
    """A node whose end is not yet reported. `drain` starts when the node's first process ends."""

    process: NodeProcess
    drain: Deadline | None = None
    leftovers: Deadline | None = None

    def is_over(self) -> bool:
        """Return whether all processes of the node have ended, or the time limit has expired."""
        if self.leftovers is not None and self.leftovers.expired():
            return True
        is_silent = all(pipe.closed for pipe in self.process.outputs.values())
        return self.drain is not None and is_silent and not self.process.stray()


class _Spare(Closeable):
    """Keeps a preloaded spare process, which can become the next restarted node.

    On Linux, a spare process that becomes a node first forks the next spare process. Otherwise, a
    spare process is started SPARE_AFTER_S after the last start of a node, and SPARE_AGAIN_S after
    the last spare process has ended by itself.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], clock: Clock
    ) -> None:
        """Set the command and a common environment. `claim_process` adds a node's own variables."""
        self._command = [command[0], str(SPARE_SCRIPT), *command[1:]]
        self._environment = environment
        self._clock = clock
        self._due: Deadline | None = None
        self._process: NodeProcess | None = None
        self._control: socket.socket | None = None  # to the spare process, or its forked successor
        self._outputs: list[IO[bytes]] = []  # of the successor, until it reports its process id

    def keep_ready(self) -> None:
        if self._process is not None and self._process.has_ended():
            self.close()
            self._due = Deadline(self._clock, SPARE_AGAIN_S)
        self._take_in()
        if self._outputs or self._due is None or not self._due.expired():
            return
        self._due = None
        control, theirs = socket.socketpair()
        try:
            with theirs:
                started = start("spare", self._command, self._environment, stdin=theirs.fileno())
        except UserError:  # the system cannot start another process now
            control.close()
            self._due = Deadline(self._clock, SPARE_AGAIN_S)
        else:
            self._process, self._control = NodeProcess("spare", started), control

    def claim_process(self, node: str, environment: Mapping[str, str]) -> NodeProcess | None:
        """Return the spare process, turned into a node, or `None` if no spare process is ready."""
        self._take_in()
        self._due = Deadline(self._clock, SPARE_AFTER_S)
        process, control = self._process, self._control
        if process is None or control is None:
            return None
        own = dict(environment.items() - self._environment.items())
        self._process = None
        with control:
            self._tell(control, own)
        process.name = node
        if process.has_ended():
            process.discard()
            return None
        return process

    def close(self) -> None:
        self._take_in(FORKED_S)
        self._let_go()

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.discard()
        if self._control is not None:
            self._control.close()
        for pipe in self._outputs:
            pipe.close()
        self._process, self._control, self._outputs = None, None, []
        _adopt_orphans(is_wanted=False)

    def _tell(self, control: socket.socket, environment: Mapping[str, str]) -> None:
        """Send a spare process its node's variables, and pipes for the next spare that it forks."""
        self._control, given = None, []
        if _adopt_orphans(is_wanted=True):
            self._control, theirs = socket.socketpair()
            pipes = os.pipe(), os.pipe()
            self._outputs = [os.fdopen(reading, "rb", buffering=0) for reading, _ in pipes]
            given = [theirs.detach(), *(writing for _, writing in pipes)]
        line = f"{json.dumps(environment)}\n".encode()
        with suppress(OSError):  # the process has ended
            control.sendall(line[socket.send_fds(control, [line], given) :])
        for descriptor in given:
            os.close(descriptor)

    def _take_in(self, timeout_s: float = 0.0) -> None:
        """Register the forked process as the next spare, if its id arrives within `timeout_s`."""
        if self._control is None or not self._outputs:
            return
        self._control.settimeout(timeout_s)
        try:
            pid = self._control.recv(CHUNK_BYTES)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            pid = b""
        if not pid:  # the process was not forked
            self._let_go()
            return
        self._control.settimeout(None)
        self._process = NodeProcess("spare", Forked(int(pid), *self._outputs))
        self._outputs, self._due = [], None
        _adopt_orphans(is_wanted=False)


def _adopt_orphans(*, is_wanted: bool) -> bool:
    """Set whether this process is a subreaper, which adopts orphans. Return whether this worked."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) == 0)


class LocalEngine:
    """Starts the nodes of a spec on this machine. On Linux, they die with the starting thread."""

    def __init__(self, spec: LaunchSpec, clock: Clock | None = None) -> None:
        self._command = spec.command
        self._clock = SystemClock() if clock is None else clock
        environments = node_environments(spec, os.environ, len(available_cores()))
        self._environments = dict(zip(spec.names, environments, strict=True))
        self._selector = selectors.DefaultSelector()
        self._watched: dict[str, _Watched] = {}
        self._spare = (
            _Spare(spec.command, environments[0], self._clock)
            if spec.spare and spec.restarts
            else None
        )
        self._held = ExitStack()
        self._folder = self._held.enter_context(held_folder())

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that have not been reaped."""
        return self._watched.keys()

    def start(self, node: str) -> None:
        ending = self._ending_of(node)
        ending.unlink(missing_ok=True)  # of the node's previous process
        environment = {**self._environments[node], ENDING: str(ending)}
        process = self._spare.claim_process(node, environment) if self._spare else None
        process = process or NodeProcess(node, start(node, self._command, environment))
        self._watched[node] = _Watched(process)
        for stream, pipe in process.outputs.items():
            self._selector.register(pipe, selectors.EVENT_READ, (pipe, node, stream))

    def send(self, number: signal.Signals) -> None:
        if self._spare is not None and number not in PASSED_ON:  # no node is restarted after a stop
            self._spare.close()
            self._spare = None
        living = _living()
        for watched in self._watched.values():
            watched.process.remember(living)
            watched.process.send(number, to_all=number == signal.SIGKILL)

    def poll(self, timeout_s: float) -> list[Event]:
        if self._spare is not None:
            self._spare.keep_ready()
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            pipe, node, stream = key.data
            lines = pipe.read_lines()
            events.append(Printed(node, stream, self._close(pipe) if lines is None else lines))
        for watched in tuple(self._watched.values()):
            events += self._ending(watched)
        return events

    def close(self) -> None:
        """End the spare process, and remove the shared memory of nodes that were killed."""
        if self._spare is not None:
            self._spare.close()
        self._selector.close()
        self._held.close()
        from dpwa.data.shared_memory import sweep  # imports numpy, so not earlier

        sweep()

    def _ending(self, watched: _Watched) -> Iterator[Event]:
        process = watched.process
        if watched.drain is None:
            if not process.has_ended():
                return
            watched.drain = Deadline(self._clock, DRAIN_GRACE_S)
        if watched.leftovers is None and watched.drain.expired():
            process.send(signal.SIGTERM, to_all=True)
            watched.leftovers = Deadline(self._clock, LEFTOVER_GRACE_S)
        if not watched.is_over():
            return
        process.send(signal.SIGKILL, to_all=True)
        del self._watched[process.name]
        code = process.reap()
        for stream, pipe in process.outputs.items():
            if not pipe.closed:
                yield Printed(process.name, stream, self._close(pipe))
        told = told_ending(self._ending_of(process.name)) if code == 0 else None
        yield NodeEnded(process.name, code, told)

    def _ending_of(self, node: str) -> Path:
        """Return the path of a node's report on the end of its training. See `told_ending`."""
        return self._folder / f"ending-{node}"

    def _close(self, pipe: OutputPipe) -> list[str]:
        self._selector.unregister(pipe)
        return pipe.close()


def _living() -> dict[int, _Life]:
    numbers = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return {number: life for number in numbers if (life := _life(number)) is not None}


def _life(number: int) -> _Life | None:
    """Return the values in /proc about a process, or `None` if the process has ended."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, group, *others = stat.rpartition(")")[2].split()
    return None if state in "ZX" else _Life(int(parent), int(group), others[16])
