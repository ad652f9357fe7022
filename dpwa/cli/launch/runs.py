"""What `dpwa launch` runs, and by what: on this machine, or by Ray."""

from __future__ import annotations

import enum
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpwa.cli.launch.node_console import NodeConsole
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.launch import LaunchSpec
    from dpwa.launch.engine import NodeEngine


class Cpus(str, enum.Enum):
    """Values of `--cpus`."""

    pin = "pin"
    none = "none"


@dataclass(frozen=True)
class Wanted:
    """What the user wants to run, however it is started."""

    command: Sequence[str]
    count: int | None
    config: Path | None
    cpus: Cpus
    restarts: int


@contextmanager
def local_run(wanted: Wanted) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Yield what is to run on this machine, as long as its configuration is there."""
    from dpwa.launch import local_config
    from dpwa.launch.configs import run_folder

    if wanted.config is not None:
        spec = _spec(wanted, wanted.config)
        with run_folder(wanted.config):
            yield spec, None
        return
    with _folder() as folder:
        yield _spec(wanted, local_config(wanted.count or 1, folder)), None


@contextmanager
def hosts_run(
    wanted: Wanted, file: Path, host: str | None, first_port: int | None
) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Yield what is to run on this machine, of the hosts of a file."""
    from dpwa.launch import LaunchSpec, require_free_addresses
    from dpwa.launch.configs import write_config
    from dpwa.launch.hostfile import nodes_of, own_line, read_hostfile
    from dpwa.launch.ports import FIRST_PORT

    hosts = read_hostfile(file)
    here = own_line(hosts, host).host
    nodes = nodes_of(hosts, first_port or FIRST_PORT, here)
    _require_enough(wanted, len(nodes), file)
    nodes = nodes[: wanted.count]
    own = [node for node in nodes if node.host == here]
    if not own:
        raise UserError(f"none of the first {len(nodes)} nodes of {file} is on {here}")
    require_free_addresses(own)
    with _folder() as folder:
        spec = LaunchSpec(
            command=wanted.command,
            config_path=write_config(nodes, folder),
            names=[node.name for node in own],
            cpus=wanted.cpus.value,
            restarts=wanted.restarts,
            world=[node.name for node in nodes],
        )
        yield spec, None


@contextmanager
def ray_run(
    wanted: Wanted, resources: Mapping[str, float], address: str | None
) -> Iterator[tuple[LaunchSpec, NodeEngine | None]]:
    """Yield what is to run in actors of Ray, as long as these are there."""
    from dpwa.config import NodeConfig
    from dpwa.launch import LaunchSpec
    from dpwa.launch.configs import write_config
    from dpwa.launch.environment import carried
    from dpwa.launch.ray_engine import RayEngine
    from dpwa.launch.ray_places import connected, place_actors

    names = [f"w{number}" for number in range(1, (wanted.count or 1) + 1)]
    needed = {resource: each * len(names) for resource, each in resources.items()}
    with _folder() as folder, connected(address, needed):
        placed = place_actors(names, resources, NodeConsole(names).note)
        nodes = [
            NodeConfig(name=name, host=place.host, port=place.port)
            for name, (_, place) in placed.items()
        ]
        spec = LaunchSpec(
            wanted.command,
            write_config(nodes, folder),
            names,
            environment=carried(os.environ),
            restarts=wanted.restarts,
        )
        yield spec, RayEngine(spec, placed, resources)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder for a configuration; settings that name files stay relative to this one."""
    from dpwa.launch.configs import run_folder
    from dpwa.launch.environment import absolute_paths

    os.environ.update(absolute_paths(os.environ, Path.cwd()))
    with run_folder() as folder:
        yield folder


def _spec(wanted: Wanted, config: Path) -> LaunchSpec:
    from dpwa.config import load_config
    from dpwa.launch import LaunchSpec, require_free_addresses

    nodes = load_config(config).nodes
    if not nodes:
        raise UserError(
            f"{config}: expected nodes to start (it has `join` only: start each node by itself, as "
            f"DPWA_NAME=w1 DPWA_CONFIG={shlex.quote(str(config))} {shlex.join(wanted.command)})"
        )
    _require_enough(wanted, len(nodes), config)
    nodes = nodes[: wanted.count]
    require_free_addresses(nodes)
    return LaunchSpec(
        command=wanted.command,
        config_path=config,
        names=[node.name for node in nodes],
        cpus=wanted.cpus.value,
        restarts=wanted.restarts,
    )


def _require_enough(wanted: Wanted, count: int, file: Path) -> None:
    if wanted.count is not None:
        message = f"-n {wanted.count} is more than the {count} nodes of {file}"
        require(wanted.count <= count, message)


def require(is_so: bool, message: str) -> None:
    """Say what is wrong with the command line, unless it is right.

    Raises:
        typer.BadParameter: it is not.
    """
    if not is_so:
        raise typer.BadParameter(message)
