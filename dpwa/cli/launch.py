"""`dpwa launch`: run a command once for each node, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes
from dpwa.cli.node_console import NodeConsole, restart_notice
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.launch import LaunchSpec, Restart

DEFAULT_RESTARTS = 3


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
    restart: Annotated[
        str,
        typer.Option(
            metavar="no|on-failure[:N]",
            help=f"Start a node that fails again, at most N times ({DEFAULT_RESTARTS}).",
        ),
    ] = "no",
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Append what each node prints to DIR/NAME.log, too."),
    ] = None,
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
    no other. With --restart on-failure it is started again under its name, after 1 s, the next time
    after 2 s, and so on, up to 30 s; it takes over the state of the others, and goes on with them.
    If the launcher itself is killed (SIGKILL), COMMAND is too, but not what COMMAND has
    started, such as the programs that a shell script runs.

    Exit codes: 0 all nodes succeeded, 1 a node failed, 2 wrong usage, configuration or command, or
    a port in use, 130 interrupted.
    """  # noqa: D301  (\b keeps lines as they are)
    if count is None and config is None:
        raise typer.BadParameter(
            "give a number of nodes (-n N), a configuration (-c FILE), or both"
        )
    restarts = restarts_of(restart)
    with contextlib.ExitStack() as stack:
        if config is None:
            config = _temporary_config(count or 1, stack)
        spec = _spec(command, config, count, cpus)
        _run(dataclasses.replace(spec, restarts=restarts), log_dir)


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


def restarts_of(policy: str) -> int:
    """Return how often a node is started again by a policy such as `on-failure:5`.

    Raises:
        typer.BadParameter: it is none.
    """
    kind, colon, count = policy.partition(":")
    if kind == "no" and not colon:
        return 0
    if kind == "on-failure" and not colon:
        return DEFAULT_RESTARTS
    if kind == "on-failure" and count.isascii() and count.isdigit():
        return int(count)
    raise typer.BadParameter(f"--restart: expected no, on-failure or on-failure:N (got {policy})")


def _run(spec: LaunchSpec, log_dir: Path | None) -> None:
    from dpwa.launch import run_nodes
    from dpwa.launch.node_logs import NodeLogs

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
