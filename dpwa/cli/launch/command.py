"""`dpwa launch`: run a command once for each node, on this machine."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes
from dpwa.cli.launch.node_console import NodeConsole, restart_notice
from dpwa.cli.launch.runs import Cpus, Wanted, hosts_run, local_run, ray_run, require

if TYPE_CHECKING:
    from dpwa.launch import LaunchSpec, Restart
    from dpwa.launch.engine import NodeEngine

DEFAULT_RESTARTS = 3


class EngineName(str, enum.Enum):
    """Values of `--engine`."""

    local = "local"
    ray = "ray"


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
    nodes_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Start this host's nodes of a list of hosts."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Which line of --nodes-from this host is."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="With --nodes-from: first port of each host (20470)."),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(help="local: processes of this machine; ray: actors of a Ray cluster."),
    ] = EngineName.local,
    resources: Annotated[
        str | None,
        typer.Option(metavar="CPU=1,...", help="With Ray: what each node needs."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster, in place of RAY_ADDRESS."),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Append what each node prints to DIR/NAME.log, too."),
    ] = None,
) -> None:
    """Run COMMAND once for each node, as processes of this machine or on a Ray cluster.

    With -c, all nodes of the file are started, or the first N with -n. With -n alone, N nodes
    w1, w2, ... get a configuration of their own, on free ports. With --nodes-from, a list of hosts
    such as `10.0.0.1 slots=4`, the same command is given on each host, and starts the nodes of that
    one; all have the same names, ranks and ports, from --port on (docs/launch.md). With
    --engine ray, each runs in an actor, where Ray has room for it (docs/ray.md).

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

    Examples:
        dpwa launch -n 4 -- python train.py --epochs 3
        dpwa launch -c nodes.yaml -- python train.py
        dpwa launch --nodes-from hosts.txt -- python train.py
        dpwa launch --engine ray -n 4 -- python train.py
    """
    has_ray_option = resources is not None or ray_address is not None
    is_local = engine is EngineName.local
    require(not (is_local and has_ray_option), "--resources and --ray-address are for --engine ray")
    has_host_option = host is not None or port is not None
    require(nodes_from is not None or not has_host_option, "--host and --port are for --nodes-from")
    wanted = Wanted(command, count, config, cpus, restarts_of(restart))
    if engine is EngineName.ray:
        require(count is not None, "--engine ray needs a number of nodes (-n N)")
        require(config is None, "-c is for --engine local: Ray says where nodes are")
        require(cpus is Cpus.none, "--cpus is for --engine local: Ray shares out the cores")
        require(nodes_from is None, "--nodes-from is for --engine local: Ray knows its machines")
        run = ray_run(wanted, resources_of(resources), ray_address)
    elif nodes_from is not None:
        require(config is None, "give either --nodes-from or -c")
        run = hosts_run(wanted, nodes_from, host, port)
    else:
        require(
            count is not None or config is not None,
            "give a number of nodes (-n N), a configuration (-c FILE), or both",
        )
        run = local_run(wanted)
    with run as (spec, started_by):
        _watch(spec, log_dir, started_by)


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


def resources_of(text: str | None) -> dict[str, float]:
    """Return the resources of each node from a list such as `CPU=2,GPU=0.5`; a CPU by default.

    Raises:
        typer.BadParameter: it is none.
    """
    found = {"CPU": 1.0}
    for part in text.split(",") if text is not None else ():
        name, _, count = part.strip().partition("=")
        is_number = re.fullmatch(r"\d+(\.\d+)?", count) is not None
        require(
            bool(name) and is_number,
            f"--resources: expected NAME=NUMBER,..., such as CPU=2,GPU=0.5 (got {text})",
        )
        found[name] = float(count)
    return found


def _watch(spec: LaunchSpec, log_dir: Path | None, engine: NodeEngine | None) -> None:
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
