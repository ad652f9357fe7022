"""`dpwa topology`: who pulls from whom, and how fast that mixes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes
from dpwa.cli.asking import JsonOption
from dpwa.errors import ConfigError, UnknownNameError, UserError

if TYPE_CHECKING:
    from dpwa.policy.topology import Topology
    from dpwa.types import StrictModel

MOST_NODES = 4096  # eigenvalues of larger matrices take too long
DEFAULT_NODES = 8


def topology(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Left out: list all topologies.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--nodes",
            min=1,
            max=MOST_NODES,
            help=f"How many nodes; {DEFAULT_NODES}, or those of a file, if left out.",
        ),
    ] = None,
    factor: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How much of a peer a merge takes.")
    ] = 0.5,
    round_number: Annotated[
        int | None,
        typer.Option("--round", metavar="T", min=0, help="Show this round only; the first is 0."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the topology; repeatable."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Take topology and nodes from a configuration, in place of NAME, -n and --set.",
        ),
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: a file that ends in .svg or .png.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who pulls from whom in a topology, and how fast it mixes.

    Exits with 1 when what some node learns never reaches another one.

    Examples:
        dpwa topology
        dpwa topology ring -n 16 --draw ring.svg
        dpwa topology -c nodes.yaml --factor 0.3
    """
    from dpwa.cli.topology_drawing import draw_topology, require_drawable
    from dpwa.cli.topology_report import describe, listing_of, show, show_listing

    if not 0.0 <= factor <= 1.0:  # NaN is neither above nor below the limits that typer checks
        raise UserError(f"--factor: expected a number from 0 to 1 (got {factor}) [DPWA-E026]")
    if config is not None:
        _refuse_beside_config(name, nodes, settings)
        chosen, options, names = _configured(config)
    elif name is not None:
        chosen = _known(name)
        options = _options(chosen, settings or ())
        chosen, names = _placed(chosen, options, nodes)
    else:
        if settings or draw:
            raise UserError(
                "NAME: expected a topology to set or draw something of (got none) [DPWA-E242]"
            )
        typer.echo(json.dumps({"topologies": listing_of()})) if as_json else show_listing()
        return
    if draw is not None:
        require_drawable(draw, len(names))
    description = describe(chosen, options, names, factor, round_number)
    if draw is not None:
        draw_topology(description, draw)
        typer.echo(f"{draw}: written", err=True)
    typer.echo(json.dumps(description.to_json())) if as_json else show(description)
    if description.figures.unreachable is not None:
        raise typer.Exit(exit_codes.FAILURE)


def _refuse_beside_config(
    name: str | None, nodes: int | None, settings: Sequence[str] | None
) -> None:
    for option, value in (("NAME", name), ("--nodes", nodes), ("--set", settings)):
        if value:
            shown = " ".join(value) if isinstance(value, list) else value
            raise UserError(f"{option}: expected nothing beside --config (got {shown}) [DPWA-E007]")


def _configured(file: Path) -> tuple[Topology, StrictModel, tuple[str, ...]]:
    from dpwa.config import load_config
    from dpwa.config.graphs import topology_of

    config = load_config(file)
    names = tuple(node.name for node in config.nodes)
    if not names:
        raise UserError(
            f"{file}: expected nodes (it has `join` only; try {config.topology} -n {DEFAULT_NODES})"
            " [DPWA-E004]"
        )
    if len(names) > MOST_NODES:
        raise UserError(
            f"{file}: expected at most {MOST_NODES} nodes (got {len(names)}) [DPWA-E005]"
        )
    options = config.options_of(config.topology)
    return topology_of(config.topology, options, names), options, names


def _known(name: str) -> Topology:
    from dpwa.config.problems import shown, suggestion
    from dpwa.policy.topology import topology, topology_names

    names = topology_names()
    if name not in names:
        hint = suggestion(name, names)
        raise UnknownNameError(
            f"NAME: expected one of {', '.join(names)} (got {shown(name)}){hint} [DPWA-E025]"
        )
    return topology(name)


def _options(topology: Topology, settings: Sequence[str]) -> StrictModel:
    from dpwa.config.problems import Place, Problems, shown
    from dpwa.config.reading import read_model
    from dpwa.config.tree import ConfigValue, MapNode, ScalarNode

    problems = Problems()
    entries = []
    for number, setting in enumerate(settings):
        key, equals, value = setting.partition("=")
        place = Place("--set", column=number)
        if equals:
            entries.append(ConfigValue(key, place, ScalarNode(place, value, shown(value))))
        else:
            problems.add(place, "", f"expected KEY=VALUE (got {shown(setting)})")
    tree = MapNode(Place("--set", column=len(settings)), tuple(entries))
    options = read_model(topology.options, tree, "", problems)
    if options is None or problems.lines():
        raise ConfigError(problems.lines())
    return options


def _placed(
    topology: Topology, options: StrictModel, nodes: int | None
) -> tuple[Topology, tuple[str, ...]]:
    """Return the topology and the names of its nodes, those of its file if it has one."""
    from dpwa.config.graphs import read_edges
    from dpwa.policy.topology import FileOptions, edges_topology

    if not isinstance(options, FileOptions):
        return topology, tuple(f"w{number}" for number in range(1, (nodes or DEFAULT_NODES) + 1))
    edges = read_edges(options.path)
    count = len(edges.names)
    if count > MOST_NODES or nodes not in (None, count):
        expected = MOST_NODES if nodes is None else nodes
        raise UserError(f"{options.path}: expected {expected} nodes (got {count}) [DPWA-E006]")
    return edges_topology(edges), edges.names
