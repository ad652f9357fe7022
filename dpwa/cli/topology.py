"""`dpwa topology` shows which nodes pull from each other, and how fast the nodes converge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes, screen
from dpwa.cli.query_options import JsonOption
from dpwa.errors import ConfigError, UnknownNameError, UserError
from dpwa.report.wording import plural

if TYPE_CHECKING:
    from dpwa.policy.mixing import Figures
    from dpwa.policy.topology import Topology
    from dpwa.types import JsonObject, StrictModel

MAX_NODES = 4096  # eigenvalues of larger matrices take too long
MAX_MATRIX_NODES = 12  # a larger matrix is too long to read, and is left out
DEFAULT_NODES = 8


def topology(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the topology. Without NAME, the command lists all topologies.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--nodes",
            min=1,
            max=MAX_NODES,
            help=f"Number of nodes. The default is {DEFAULT_NODES}, or the number of nodes in the "
            "configuration or file of edges.",
        ),
    ] = None,
    factor: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Weight of the peer's parameters in a merge.")
    ] = 0.5,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an option of the topology."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Use the topology and nodes of a configuration, instead of NAME, -n and --set.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many peers each node has in a topology, and how fast the nodes converge.

    The exit code is 1 if the parameters of some node can never reach some other node.

    Examples:
        dpwa topology -n 16
        dpwa topology ring -n 16 --json
        dpwa topology -c nodes.yaml --factor 0.3
    """
    from dpwa.policy.mixing import figures_of

    if not 0.0 <= factor <= 1.0:  # the limits of typer do not refuse NaN
        raise UserError(f"--factor: expected a number from 0 to 1 (got {factor}) [DPWA-E026]")
    if config is not None:
        _refuse_beside_config(name, nodes, settings)
        chosen, options, names = _configured(config)
    elif name is not None:
        chosen = _known(name)
        options = _options(chosen, settings or ())
        chosen, names = _placed(chosen, options, nodes)
    else:
        if settings:
            raise UserError(
                "NAME: expected a topology, because --set sets options of a topology [DPWA-E242]"
            )
        _list_all(nodes or DEFAULT_NODES, factor, as_json=as_json)
        return
    figures = figures_of(chosen, options, len(names), factor)
    if as_json:
        typer.echo(json.dumps(_plain_data(chosen, options, names, figures)))
    else:
        _show(chosen, options, names, figures)
    if figures.unreachable is not None:
        raise typer.Exit(exit_codes.FAILURE)


def _refuse_beside_config(
    name: str | None, nodes: int | None, settings: Sequence[str] | None
) -> None:
    for option, value in (("NAME", name), ("--nodes", nodes), ("--set", settings)):
        if value:
            shown = " ".join(value) if isinstance(value, list) else value
            raise UserError(f"{option} cannot be used with --config (got {shown}) [DPWA-E007]")


def _configured(file: Path) -> tuple[Topology, StrictModel, tuple[str, ...]]:
    from dpwa.config import load_config
    from dpwa.config.graphs import topology_of

    config = load_config(file)
    names = tuple(node.name for node in config.nodes)
    if not names:
        raise UserError(
            f"{file}: expected nodes, but the file has only `join`. Try `dpwa topology "
            f"{config.topology} -n {DEFAULT_NODES}` [DPWA-E004]"
        )
    if len(names) > MAX_NODES:
        raise UserError(
            f"{file}: expected at most {MAX_NODES} nodes (got {len(names)}) [DPWA-E005]"
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
    from dpwa.config.document import Document, Scalar
    from dpwa.config.problems import Place, shown
    from dpwa.config.validation import read_model

    document, source = Document(), "--set"
    parts = [setting.partition("=") for setting in settings]
    document.read([{key: Scalar(value)} for key, equals, value in parts if equals], source)
    options = read_model(topology.options, document)
    for text, equals, _ in parts:
        if not equals:
            message = f"expected KEY=VALUE (got {shown(text)})"
            document.problems.add(Place(source), (), message)
    if options is None or document.problems.lines():
        raise ConfigError(document.problems.lines())
    return options


def _placed(
    topology: Topology, options: StrictModel, nodes: int | None
) -> tuple[Topology, tuple[str, ...]]:
    """Return the topology and the names of its nodes. A file of edges also names the nodes."""
    from dpwa.config.graphs import read_edges
    from dpwa.policy.topology import FileOptions, edges_topology

    if not isinstance(options, FileOptions):
        return topology, tuple(f"w{number}" for number in range(1, (nodes or DEFAULT_NODES) + 1))
    edges = read_edges(options.path)
    count = len(edges.names)
    if count > MAX_NODES or nodes not in (None, count):
        expected = f"at most {MAX_NODES}" if nodes is None else nodes
        raise UserError(
            f"{options.path}: expected edges of {expected} nodes (got {count} nodes) [DPWA-E006]"
        )
    return edges_topology(edges), edges.names


def _plain_data(
    topology: Topology, options: StrictModel, names: Sequence[str], figures: Figures
) -> JsonObject:
    nodes = len(names)
    weights = figures.weights
    return {
        "topology": topology.name,
        "options": options.model_dump(mode="json"),
        "nodes": list(names),
        "factor": figures.factor,
        "period": figures.period,
        "rounds": [
            {
                "round": number,
                "neighbours": {
                    name: [names[other] for other in pulls]
                    for name, pulls in zip(names, round_pulls, strict=True)
                },
            }
            for number, round_pulls in enumerate(_pulls(topology, options, nodes))
        ],
        "matrix": figures.matrix.tolist() if nodes <= MAX_MATRIX_NODES else None,
        "spectral_gap": figures.spectral_gap,
        "rounds_to_1000th": figures.rounds,
        "rounds_to_1000th_drawn": figures.drawn_rounds,
        "diameter": figures.diameter,
        "unreachable": figures.unreachable and [names[i] for i in figures.unreachable],
        "doubly_stochastic": figures.is_doubly_stochastic,
        "stationary_weights": weights
        if weights is None
        else dict(zip(names, weights.tolist(), strict=True)),
    }


def _pulls(topology: Topology, options: StrictModel, nodes: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield, for each round of a period, the indices of the peers that each node pulls from."""
    from dpwa.policy.topology import neighbours_of

    for number in range(topology.period(options, nodes)):
        yield [neighbours_of(topology, options, index, nodes, number) for index in range(nodes)]


def _show(topology: Topology, options: StrictModel, names: Sequence[str], figures: Figures) -> None:
    from dpwa.config.graphs import disconnection

    console = screen.console()
    _print_table([_row(topology, options, figures)], figures.nodes, figures.factor)
    weights = figures.weights
    if weights is not None and not figures.is_doubly_stochastic:
        rounded = weights.round(12)  # weights that differ by rounding errors become equal
        told = [f"{weights[i]:.4g} ({names[i]})" for i in (rounded.argmin(), rounded.argmax())]
        text = f"Nodes agree on a weighted mean, with weights from {' to '.join(told)}."
        console.print(screen.plain(text))
    if figures.unreachable is not None:
        text = disconnection(figures.unreachable, names)
        console.print(screen.plain(f"Not connected: {text}."), style="bold red")


def _list_all(nodes: int, factor: float, *, as_json: bool) -> None:
    from dpwa.policy.topology import topology, topology_names

    known = [topology(name) for name in topology_names()]
    defaults = {each.name: _defaults(each) for each in known}
    if as_json:
        listed = [
            {"name": each.name, "options": defaults[each.name], "summary": each.summary}
            for each in known
        ]
        typer.echo(json.dumps({"topologies": listed}))
        return
    _print_table([_listed(each, nodes, factor) for each in known], nodes, factor)
    console = screen.console()
    console.print("\nOptions, set with --set KEY=VALUE:")
    for name, options in defaults.items():
        told = [key if value is None else f"{key}={value}" for key, value in options.items()]
        if told:
            console.print(screen.plain(f"{name}: {', '.join(told)}"))


def _defaults(topology: Topology) -> JsonObject:
    """Return the default of each option, or `None` for an option without a default."""
    fields = topology.options.model_fields
    return {
        key: None if field.is_required() else field.get_default() for key, field in fields.items()
    }


def _listed(topology: Topology, nodes: int, factor: float) -> tuple[str, ...]:
    """Return the row of a topology with default options. `-` stands for an unknown figure."""
    from dpwa.policy.mixing import figures_of

    try:
        options = topology.options()
        return _row(topology, options, figures_of(topology, options, nodes, factor))
    except (ValueError, UserError):  # an option has no default, or does not fit the nodes
        return (topology.name, "-", "-", "-", "-", topology.summary)


def _row(topology: Topology, options: StrictModel, figures: Figures) -> tuple[str, ...]:
    degrees = {
        len(pulls)
        for round_pulls in _pulls(topology, options, figures.nodes)
        for pulls in round_pulls
    }
    drawn = figures.drawn_rounds
    return (
        topology.name,
        "-".join(str(degree) for degree in sorted({min(degrees), max(degrees)})),
        f"{figures.spectral_gap:.3g}",
        "never" if figures.rounds is None else str(figures.rounds),
        "-" if drawn is None else str(drawn),
        topology.summary,
    )


def _print_table(rows: Sequence[Sequence[str]], nodes: int, factor: float) -> None:
    console = screen.console()
    title = f"{plural(nodes, 'node')}, factor {factor:g}"
    console.print(title, style="bold")
    headings = ("topology", "degree", "gap", "rounds", "picked", "a node fetches from")
    table = screen.table(headings, rows, console.width, right=range(1, 5), text=[5])
    console.print(table)
