"""`dpwa launch`: run a command once for each node, on this machine."""

from __future__ import annotations

import contextlib
import enum
import io
import os
import select
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dpwa.cli import exit_codes
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.launch import LaunchSpec

WRITE_PATIENCE_MS = 500  # for a reader that is slow, when everything else is over
COLOURS = (36, 33, 35, 32, 34, 31)  # of the ANSI terminal: cyan, yellow, magenta, green, blue, red


class Cpus(str, enum.Enum):
    """Values of `--cpus`."""

    pin = "pin"
    none = "none"


def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The program to run and its arguments."),
    ],
    count: Annotated[
        int | None,
        typer.Option("-n", "--nodes", min=1, help="Start N nodes.", metavar="N"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Start the nodes of this file."),
    ] = None,
    cpus: Annotated[
        Cpus,
        typer.Option(help="pin: give every node its own share of the cores."),
    ] = Cpus.none,
) -> None:
    """Run COMMAND once for each node, as processes of this machine.

    \b
    dpwa launch -n 4 -- python train.py --epochs 3
    dpwa launch -c nodes.yaml -- python train.py

    With -c, all nodes of the file are started, or the first N with -n. With -n alone, N nodes
    w1, w2, ... get a configuration of their own, on free ports.

    Each process learns who it is from its environment: DPWA_NAME, DPWA_CONFIG (the path of the
    configuration), DPWA_RANK (0 to N-1) and DPWA_WORLD_SIZE (N). Unless OMP_NUM_THREADS is set, it
    is set so that the nodes share the cores. Every line that a node prints is shown after its name.
    Nodes read nothing from the terminal.

    One Ctrl-C stops all nodes, and all that they have started: SIGINT, then SIGTERM after 5 s, then
    SIGKILL after 2 s more; a second Ctrl-C kills at once. A node that fails is reported and stops
    no other. If the launcher itself is killed (SIGKILL), COMMAND is too, but not what COMMAND has
    started, such as the programs that a shell script runs.

    Exit codes: 0 all nodes succeeded, 1 a node failed, 2 wrong usage, configuration or command, or
    a port in use, 130 interrupted.
    """  # noqa: D301  (\b keeps lines as they are)
    if count is None and config is None:
        raise typer.BadParameter(
            "give a number of nodes (-n N), a configuration (-c FILE), or both"
        )
    with contextlib.ExitStack() as stack:
        if config is None:
            config = _temporary_config(count or 1, stack)
        _run(_spec(command, config, count, cpus))


def _temporary_config(count: int, stack: contextlib.ExitStack) -> Path:
    import tempfile

    from dpwa.launch import local_config
    from dpwa.launch.environment import absolute_paths

    os.environ.update(absolute_paths(os.environ, Path.cwd()))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpwa-launch-"))
    return local_config(count, Path(folder))


def _spec(command: list[str], config: Path, count: int | None, cpus: Cpus) -> LaunchSpec:
    from dpwa.config import load_config
    from dpwa.launch import LaunchSpec, require_free_addresses

    nodes = load_config(config).nodes
    if not nodes:
        raise UserError(
            f"{config}: expected nodes to start (it has `join` only: start each node by itself, as "
            f"DPWA_NAME=w1 DPWA_CONFIG={shlex.quote(str(config))} {shlex.join(command)})"
        )
    if count is not None and count > len(nodes):
        raise typer.BadParameter(f"-n {count} is more than the {len(nodes)} nodes of {config}")
    nodes = nodes[:count]
    require_free_addresses(nodes)
    return LaunchSpec(
        command=command,
        config_path=config,
        names=[node.name for node in nodes],
        cpus="pin" if cpus is Cpus.pin else "none",
    )


def _run(spec: LaunchSpec) -> None:
    from dpwa.launch import run_nodes

    console = NodeConsole(spec.names)
    try:
        codes = run_nodes(
            spec, console.show_line, on_exit=console.show_exit, on_signal=console.show_signal
        )
    except KeyboardInterrupt:
        console.give_up_unread_streams()
        console.note("all nodes have stopped")
        raise
    failed = [name for name, code in codes.items() if code]
    console.note(_summary(len(codes), failed))
    if failed:
        raise typer.Exit(exit_codes.FAILURE)


class NodeConsole:
    """Shows what the nodes print, each line after the node's name, and what becomes of them.

    The names are coloured where the stream is a terminal that can, unless NO_COLOR is set.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for stream in self._streams.values():
            if isinstance(stream, io.TextIOWrapper):  # nodes may print what this locale cannot
                stream.reconfigure(errors="backslashreplace")
        wants_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = {n: s.isatty() and wants_colour for n, s in self._streams.items()}
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._width = max(map(len, names))
        self._stopping = False

    def show_line(self, node: str, stream: str, line: str) -> None:
        """Show one line that a node has printed to `stdout` or `stderr`."""
        self._write(stream, f"{self._prefix(node, stream)} {line}")

    def show_exit(self, node: str, code: int) -> None:
        """Report a node that failed, unless it was asked to stop."""
        if code and not self._stopping:
            self.note(f"node {node} failed: {exit_reason(code)}")

    def show_signal(self, number: signal.Signals, nodes: Sequence[str]) -> None:
        """Report that the nodes are asked to stop, and how hard."""
        self._stopping = True
        hint = " (Ctrl-C again kills)" if number == signal.SIGINT else ""
        self.note(f"stopping {', '.join(nodes)} with {number.name}{hint}")

    def note(self, text: str) -> None:
        """Say something that is not a node's output."""
        self._write("stderr", f"dpwa launch: {text}")

    def give_up_unread_streams(self) -> None:
        """Discard what is still to be written to a stream whose reader has left, or is stuck."""
        for stream in self._streams.values():
            if not _is_read(stream):
                _discard(stream)

    def _prefix(self, node: str, stream: str) -> str:
        prefix = f"{node:<{self._width}} |"
        if not self._coloured[stream]:
            return prefix
        return f"\x1b[{COLOURS[self._ranks[node] % len(COLOURS)]}m{prefix}\x1b[0m"

    def _write(self, stream: str, line: str) -> None:
        try:
            self._streams[stream].write(line + "\n")
            self._streams[stream].flush()
        except KeyboardInterrupt:  # it blocked, and nobody wants to wait any longer
            _discard(self._streams[stream])
            raise
        except OSError:
            if not self._stopping:
                raise
            _discard(self._streams[stream])


def _is_read(stream: TextIO) -> bool:
    poll = select.poll()
    try:
        poll.register(stream, select.POLLOUT)
    except OSError:  # not a stream of the system
        return True
    return [events for _, events in poll.poll(WRITE_PATIENCE_MS)] == [select.POLLOUT]


def _discard(stream: TextIO) -> None:
    """Point a stream nowhere: also the interpreter's last flush must neither fail nor block."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def exit_reason(code: int) -> str:
    """Return a process's exit code in words; negative is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"ended by signal {-code}"


def _summary(count: int, failed: Sequence[str]) -> str:
    if not failed:
        return f"all {count} nodes succeeded" if count > 1 else "the node succeeded"
    return f"{len(failed)} of {count} nodes failed: {', '.join(failed)}"
