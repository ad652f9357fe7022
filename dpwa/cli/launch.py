"""`dpwa launch` runs a command once for each node, on this machine or with Ray."""

from __future__ import annotations

import enum
import io
import os
import re
import secrets
import select
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dpwa.cli import exit_codes
from dpwa.cli.query_options import MAX_PORT, gone
from dpwa.errors import UserError
from dpwa.files import open_regular
from dpwa.lifecycle import Closeable
from dpwa.report.wording import plural

if TYPE_CHECKING:
    from dpwa.launch import LaunchSpec, Restart
    from dpwa.launch.engine import NodeEngine

app = typer.Typer()

WRITE_PATIENCE_MS = 500  # for a slow reader of the output, when all nodes have ended
TRACEBACK = "Traceback (most recent call last):"  # its first line; Python indents the next lines
COLOURS = (36, 33, 35, 32, 34, 31)  # of the ANSI terminal: cyan, yellow, magenta, green, blue, red


class NodeConsole:
    """Shows the output of the nodes, and reports nodes that end. Lines begin with the node's name.

    The names are coloured if the stream is a terminal with colours, unless NO_COLOR is set.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for stream in self._streams.values():
            if isinstance(
                stream, io.TextIOWrapper
            ):  # nodes may print characters outside the locale
                stream.reconfigure(errors="backslashreplace")
        wants_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = {n: s.isatty() and wants_colour for n, s in self._streams.items()}
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._width = max(map(len, names))
        self._restarts: Counter[str] = Counter()
        self._stopping = False
        self._tracebacks: dict[str, list[str]] = {}  # unfinished, of stopping nodes

    def show_line(self, node: str, stream: str, line: str) -> None:
        """Show a line of a node's output. In a stop, hide tracebacks of `KeyboardInterrupt`."""
        is_in_traceback = node in self._tracebacks or (self._stopping and line == TRACEBACK)
        if stream == "stderr" and is_in_traceback:
            self._tracebacks.setdefault(node, []).append(line)
            if line[:1] not in ("", " ") and line != TRACEBACK:
                self._end_traceback(node)
        else:
            self._write(stream, f"{self._prefix(node, stream)} {line}")

    def _end_traceback(self, node: str) -> None:
        lines = self._tracebacks.pop(node, [])
        for line in lines if lines[-1:] != ["KeyboardInterrupt"] else ():
            self._write("stderr", f"{self._prefix(node, 'stderr')} {line}")

    def show_exit(self, node: str, code: int) -> None:
        """Report the exit code of a failed node, unless the launcher is stopping the nodes."""
        self._end_traceback(node)
        if code and not self._stopping:
            number = self._restarts[node]
            used = f" (after {plural(number, 'restart')})" if number else ""
            self.note(f"node {node} failed: {exit_reason(code)}{used}")

    def show_restart(self, restart: Restart) -> None:
        self._restarts[restart.node] = restart.number
        self.note(restart_notice(restart))

    def show_signal(self, number: signal.Signals, nodes: Sequence[str]) -> None:
        from dpwa.launch.stopping import PASSED_ON

        if number in PASSED_ON:
            self.note(f"passing {number.name} on to {', '.join(nodes)}")
            return
        self._stopping = True
        hint = " (a second Ctrl-C kills the nodes)" if number == signal.SIGINT else ""
        self.note(f"stopping {', '.join(nodes)} with {number.name}{hint}")

    def note(self, text: str) -> None:
        self._write("stderr", f"dpwa launch: {text}")

    def give_up_unread_streams(self) -> None:
        """Discard the remaining output to each stream that no program reads."""
        for stream in self._streams.values():
            if not _is_read(stream):
                discard(stream)

    def _prefix(self, node: str, stream: str) -> str:
        prefix = f"{node:<{self._width}} |"
        if not self._coloured[stream]:
            return prefix
        return f"\x1b[{COLOURS[self._ranks[node] % len(COLOURS)]}m{prefix}\x1b[0m"

    def _write(self, stream: str, line: str) -> None:
        try:
            self._streams[stream].write(line + "\n")
            self._streams[stream].flush()
        except KeyboardInterrupt:  # the write blocked, and the user no longer waits for it
            discard(self._streams[stream])
            raise
        except OSError:
            if not self._stopping:
                raise
            discard(self._streams[stream])


def _is_read(stream: TextIO) -> bool:
    poll = select.poll()
    try:
        poll.register(stream, select.POLLOUT)
    except OSError:  # the stream has no file descriptor that can be polled
        return True
    return [events for _, events in poll.poll(WRITE_PATIENCE_MS)] == [select.POLLOUT]


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that a later flush of the stream cannot fail or block."""
    with suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"ended by signal {-code}"


def restart_notice(restart: Restart) -> str:
    when = f"in {restart.pause_s:g} s" if restart.pause_s else "at once"
    return (
        f"node {restart.node} failed: {exit_reason(restart.code)}. Restarting the node {when} "
        f"(restart {restart.number} of {restart.most})"
    )


class NodeLogs(Closeable):
    """Appends the output of each node to DIR/NAME.log. When `write` returns, the file has the line.

    If a file can no longer be written, for example because the disk is full, the nodes continue,
    and the error is reported once. Without a folder, nothing is written.
    """

    def __init__(
        self, folder: Path | None, names: Sequence[str], note: Callable[[str], None]
    ) -> None:
        self._note = note
        self._files: dict[str, TextIO] = {}
        if folder is None:
            return
        path = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                path = folder / f"{name}.log"
                self._files[name] = open(  # noqa: SIM115
                    path,
                    "a",
                    encoding="utf-8",
                    errors="backslashreplace",
                    buffering=1,
                    opener=open_regular,
                )
        except OSError as error:
            self.close()
            raise UserError(
                f"--log-dir: {path} cannot be written ({error.strerror}) [DPWA-E077]"
            ) from None

    def write(self, node: str, line: str) -> None:
        file = self._files.get(node)
        if file is None:
            return
        try:
            file.write(line + "\n")
        except OSError as error:
            del self._files[node]
            _close(file)
            self._note(f"{file.name} can no longer be written: {error.strerror}")

    def close(self) -> None:
        for file in self._files.values():
            _close(file)
        self._files.clear()


def _close(file: TextIO) -> None:
    with suppress(OSError):  # closing a file flushes the lines that could not be written
        file.close()


DEFAULT_RESTARTS = 3


class EngineName(str, enum.Enum):
    local = "local"
    ray = "ray"


@app.command(
    context_settings={"allow_interspersed_args": False},  # the rest belongs to the nodes' command
    options_metavar="[-n N] [-c FILE] [OPTIONS] --",
)
def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="The program that each node runs, and its arguments."
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option("-n", "--nodes", min=1, help="Start N nodes.", metavar="N"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c", "--config", metavar="FILE", help="Start the nodes that this configuration lists."
        ),
    ] = None,
    restart: Annotated[
        str,
        typer.Option(
            metavar="no|on-failure[:N]",
            help=f"Restart each failed node at most N times. By default, N is {DEFAULT_RESTARTS}.",
        ),
    ] = "no",
    spare: Annotated[
        bool,
        typer.Option(
            "--spare",
            help="Keep a spare process, with torch imported, for the next restart (--restart).",
        ),
    ] = False,
    nodes_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Start the nodes of this host. FILE lists all hosts of the run."
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="The name of this host in the list of hosts (--nodes-from)."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_PORT,
            help="First port of the nodes on each host (--nodes-from). The default is 20470.",
        ),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(help="Run the nodes as local processes, or as actors of a Ray cluster."),
    ] = EngineName.local,
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="CPU=1,...", help="Resources that Ray reserves for each node (--engine ray)."
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also append the output of each node to DIR/NAME.log."),
    ] = None,
    _cpus: Annotated[
        str | None, gone("--cpus", "`os.sched_setaffinity(0, ...)` at the beginning of your script")
    ] = None,
    _address: Annotated[str | None, gone("--ray-address", "the variable RAY_ADDRESS")] = None,
) -> None:
    """Run COMMAND once for each node, as processes on this machine or on a Ray cluster.

    With -c, the launcher starts all nodes in the configuration. With -c and -n, it starts only the
    first N of these nodes. With -n alone, the launcher writes a configuration for N nodes w1, w2,
    ... on free ports. With --nodes-from, run the same `dpwa launch` on each host. FILE has lines
    such as `10.0.0.1 slots=4`, and each launcher starts the nodes of its own host. All hosts give
    the nodes the same names, ranks and ports (from --port on). With --engine ray, each node runs in
    a Ray actor. docs/launch.md explains --nodes-from and --engine ray.

    The launcher sets environment variables for each process: DPWA_NAME (the name of the node),
    DPWA_CONFIG (the path of the configuration), DPWA_RANK (0 to N-1), DPWA_WORLD_SIZE (N) and,
    except with --nodes-from, DPWA_RUN_ID. If OMP_NUM_THREADS is not set, the launcher divides the
    cores among the nodes. Each line of output begins with the name of the node that wrote the line.
    Nodes cannot read from the terminal.

    One Ctrl-C stops all nodes and all processes that the nodes started. The nodes get SIGINT,
    SIGTERM after 5 s, and SIGKILL after 2 s more. A second Ctrl-C kills the nodes at once. After
    SIGTERM, SIGHUP or SIGQUIT, the nodes get that signal instead of SIGINT. The launcher only
    passes SIGUSR1, SIGUSR2 and SIGXCPU on to the nodes. If SIGKILL ends the launcher, COMMAND is
    killed, too. Processes that COMMAND started, such as the programs of a shell script, continue.

    If a node fails, the launcher reports the failure, and the other nodes continue. With --restart
    on-failure, the launcher restarts the node under its name. The new process adopts the state of a
    peer. A node that ends without `finish` has failed, even with exit code 0. If your script never
    calls `finish`, set `needs_finish: false`. A node also fails in `finish` if its model is not
    finite, if most of its peers still have different parameters, or if it finished alone although
    other nodes have not failed. The launcher does not restart such a node.

    The exit code is 0 if all nodes succeeded, and 1 if a node failed. It is 2 for wrong usage, a
    wrong configuration or command, or a port in use. It is 130 after Ctrl-C.

    Examples:
        dpwa launch -n 4 -- python train.py --epochs 3
        dpwa launch -c nodes.yaml -- python train.py
        dpwa launch --nodes-from hosts.txt -- python train.py
        dpwa launch --engine ray -n 4 -- python train.py
    """
    from dpwa.launch import LaunchSpec

    is_local = engine is EngineName.local
    _require(resources is None or not is_local, "--resources works only with --engine ray")
    has_host_option = host is not None or port is not None
    _require(nodes_from is not None or not has_host_option, "--host and --port need --nodes-from")
    restarts = restarts_of(restart)
    _require(is_local or not spare, "--spare works only with --engine local")
    _require(restarts > 0 or not spare, "--spare needs --restart on-failure")
    spec = LaunchSpec(command, Path(), (), restarts=restarts, spare=spare)
    if engine is EngineName.ray:
        _require(count is not None, "--engine ray needs a number of nodes (-n N)")
        _require(config is None, "-c needs --engine local, because Ray places the nodes")
        _require(nodes_from is None, "--nodes-from needs --engine local, because Ray picks hosts")
        run = _ray_run(spec, count or 1, resources_of(resources))
    elif nodes_from is not None:
        _require(config is None, "give either --nodes-from or -c, not both")
        run = _hosts_run(spec, count, nodes_from, host, port)
    else:
        _require(
            count is not None or config is not None,
            "give a number of nodes (-n N), a configuration (-c FILE), or both",
        )
        run = _local_run(spec, count, config)
    with run as (spec, started_by):
        _watch(spec, log_dir, started_by)


def restarts_of(policy: str) -> int:
    """Return the number of restarts that a policy such as `on-failure:5` allows."""
    kind, colon, count = policy.partition(":")
    if kind == "no" and not colon:
        return 0
    if kind == "on-failure" and not colon:
        return DEFAULT_RESTARTS
    if kind == "on-failure" and count.isascii() and count.isdigit():
        return int(count)
    raise typer.BadParameter(f"--restart: expected no, on-failure or on-failure:N (got {policy})")


def resources_of(text: str | None) -> dict[str, float]:
    """Return the resources of a node from text such as `CPU=2,GPU=0.5`. The default is one CPU."""
    found = {"CPU": 1.0}
    for part in text.split(",") if text is not None else ():
        name, _, count = part.strip().partition("=")
        is_number = re.fullmatch(r"\d+(\.\d+)?", count) is not None
        _require(
            bool(name) and is_number,
            f"--resources: expected NAME=NUMBER,..., such as CPU=2,GPU=0.5 (got {text})",
        )
        found[name] = float(count)
    return found


def _watch(spec: LaunchSpec, log_dir: Path | None, engine: NodeEngine | None) -> None:
    from dpwa.launch import run_nodes

    console = NodeConsole(spec.names)
    with NodeLogs(log_dir, spec.names, console.note) as logs:

        def show_line(node: str, stream: str, line: str) -> None:
            logs.write(node, line)
            console.show_line(node, stream, line)

        def show_restart(restart: Restart) -> None:
            logs.write(restart.node, f"dpwa launch: {restart_notice(restart)}")
            console.show_restart(restart)

        try:
            codes = run_nodes(
                spec,
                show_line,
                on_exit=console.show_exit,
                on_signal=console.show_signal,
                on_restart=show_restart,
                engine=engine,
            )
        except KeyboardInterrupt:
            console.give_up_unread_streams()
            console.note("all nodes have stopped")
            raise
    failed = [name for name, code in codes.items() if code]
    console.note(_summary(len(codes), failed))
    if failed:
        raise typer.Exit(exit_codes.FAILURE)


def _summary(count: int, failed: Sequence[str]) -> str:
    if not failed:
        return f"all {count} nodes succeeded" if count > 1 else "the node succeeded"
    return f"{len(failed)} of {count} nodes failed: {', '.join(failed)}"


@contextmanager
def _local_run(
    spec: LaunchSpec, count: int | None, config: Path | None
) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Prepare a run on this machine. The configuration of the run exists until the block ends."""
    from dpwa.launch import local_config
    from dpwa.launch.configs import run_folder

    if config is not None:
        found = _with_nodes_of(config, spec, count)
        with run_folder(config):
            yield found, None
        return
    with _folder() as folder:
        yield _with_nodes_of(local_config(count or 1, folder), spec, count), None


@contextmanager
def _hosts_run(
    spec: LaunchSpec, count: int | None, file: Path, host: str | None, first_port: int | None
) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Prepare this machine's part of a run. `file` lists the hosts of the run."""
    from dpwa.launch import require_free_addresses
    from dpwa.launch.configs import write_config
    from dpwa.launch.hostfile import nodes_of, own_line, read_hostfile
    from dpwa.launch.ports import FIRST_PORT

    hosts = read_hostfile(file)
    here = own_line(hosts, host).host
    nodes = nodes_of(hosts, first_port or FIRST_PORT, here)
    _require_enough(count, len(nodes), file)
    nodes = nodes[:count]
    own = [node for node in nodes if node.host == here]
    if not own:
        raise UserError(
            f"{file}: none of the first {len(nodes)} nodes is on this host, {here}. Use a larger "
            "-n, or start only the other hosts [DPWA-E070]"
        )
    require_free_addresses(own)
    names, world = ([node.name for node in listed] for listed in (own, nodes))
    with _folder() as folder:
        yield replace(spec, config_path=write_config(nodes, folder), names=names, world=world), None


@contextmanager
def _ray_run(
    spec: LaunchSpec, count: int, resources: Mapping[str, float]
) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Prepare a run with a Ray actor for each node. The actors exist until the block ends."""
    from dpwa.config import NodeConfig
    from dpwa.launch.configs import write_config
    from dpwa.launch.engine import carried
    from dpwa.launch.ray_engine import RayEngine, connected, place_actors

    names = [f"w{number}" for number in range(1, count + 1)]
    needed = {resource: each * count for resource, each in resources.items()}
    with _folder() as folder, connected(needed):
        placed = place_actors(names, resources, NodeConsole(names).note)
        nodes = [
            NodeConfig(name=name, host=place.host, port=place.port)
            for name, (_, place) in placed.items()
        ]
        path = write_config(nodes, folder)
        environment = {"DPWA_RUN_ID": secrets.token_hex(8), **carried(os.environ)}
        found = replace(spec, config_path=path, names=names, environment=environment)
        yield found, RayEngine(found, placed, resources)


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a new folder for a configuration, and make paths in environment variables absolute."""
    from dpwa.launch.configs import run_folder
    from dpwa.launch.engine import absolute_paths

    os.environ.update(absolute_paths(os.environ, Path.cwd()))
    with run_folder() as folder:
        yield folder


def _with_nodes_of(config: Path, spec: LaunchSpec, count: int | None) -> LaunchSpec:
    from dpwa.config import load_config
    from dpwa.launch import require_free_addresses

    nodes = load_config(config).nodes
    if not nodes:
        raise UserError(
            f"{config}: expected nodes to start, but the file has only `join`. Start each node by "
            f"DPWA_NAME=w1 DPWA_CONFIG={shlex.quote(str(config))} {shlex.join(spec.command)}"
            " [DPWA-E004]"
        )
    _require_enough(count, len(nodes), config)
    nodes = nodes[:count]
    require_free_addresses(nodes)
    return replace(spec, config_path=config, names=[node.name for node in nodes])


def _require_enough(count: int | None, listed: int, file: Path) -> None:
    if count is not None:
        _require(count <= listed, f"-n {count} is more than the {listed} nodes of {file}")


def _require(is_so: bool, message: str) -> None:
    """Raise an error about the command line with this message if `is_so` is false."""
    if not is_so:
        raise typer.BadParameter(message)
