"""A topology as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa.cli.topology_description import MOST_MATRIX_NODES, Description, listing_of
from dpwa.config.graphs import disconnection
from dpwa.config.problems import listing
from dpwa.policy.topology.rules import FileOptions
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpwa.policy.topology.figures import Figures

LEAST_WIDTH = 80
MOST_ROWS = 64
NOTHING = "·"


def show_listing() -> None:
    """Print all topologies, one line each."""
    rows = listing_of()
    table = _table("topology", "who is pulled from")
    for row in rows:
        table.add_row(row["name"], row["summary"])
    console = _console()
    console.print(table)
    console.print("\nOptions, set with --set KEY=VALUE:")
    for row in rows:
        if row["options"]:
            console.print(f"{row['name']}: {_options(row['options'])}", soft_wrap=True)


def show(description: Description) -> None:
    """Print who pulls from whom, the mixing matrix and all figures."""
    console = _console()
    title = f"{title_of(description)}, factor {description.figures.factor:g}"
    console.print(title, style="bold", markup=False, soft_wrap=True)
    console.print(_neighbour_table(description))
    if len(description.names) > MOST_ROWS:
        rest = len(description.names) - MOST_ROWS
        console.print(f"and {rest} more; --json has them all", soft_wrap=True)
    console.print()
    if description.shows_matrix:
        console.print(_matrix_title(description), style="bold", soft_wrap=True)
        console.print(_matrix_table(description, console.width))
    else:
        text = f"The mixing matrix is shown for at most {MOST_MATRIX_NODES} nodes."
        console.print(text, soft_wrap=True)
    console.print()
    console.print(_figure_table(description))
    if description.figures.unreachable is not None:
        text = disconnection(description.figures.unreachable, description.names)
        console.print(f"Not connected: {text}.", style="bold red", markup=False, soft_wrap=True)


def title_of(description: Description) -> str:
    """Return what is shown in a few words, such as `ring, 16 nodes`."""
    count = len(description.names)
    options, number = description.options, description.round_number
    name = description.topology.name
    if isinstance(options, FileOptions):
        name = Path(options.path).name
    of_round = "" if number is None else f", round {number}"
    return f"{name}, {count} node{'s' * (count != 1)}{of_round}"


def _options(defaults: JsonObject) -> str:
    return ", ".join(key if value is None else f"{key}={value}" for key, value in defaults.items())


def _neighbour_table(description: Description) -> Table:
    names = description.names
    several = len(description.rounds) > 1
    table = _table("node", *(f"round {n}" if several else "pulls from" for n in description.rounds))
    for index, name in enumerate(names[:MOST_ROWS]):
        cells = [
            listing([names[other] for other in neighbours[index]]) or "nobody"
            for neighbours in description.rounds.values()
        ]
        table.add_row(name, *cells)
    return table


def _matrix_title(description: Description) -> str:
    period = description.figures.period
    of_rounds = description.round_number is None and period > 1
    which = f" of {period} rounds together" if of_rounds else ""
    return f"Mixing matrix{which} (row: who pulls; column: whose parameters)"


def _matrix_table(description: Description, columns: int) -> Table:
    """Lay out the matrix; where the names are too long for its head, they get numbers."""
    names = description.names
    width = max(map(len, names)) + sum(1 + max(len(name), len("0.000")) for name in names)
    numbers = [str(number) for number in range(1, len(names) + 1)]
    heads = names if width <= columns else numbers
    titles = names if width <= columns else list(map(" ".join, zip(numbers, names, strict=True)))
    table = _table("", *heads, is_numeric=True)
    for title, row in zip(titles, description.matrix, strict=True):
        table.add_row(title, *(f"{value:.3f}" if value else NOTHING for value in row))
    return table


def _figure_table(description: Description) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in _figure_rows(description):
        table.add_row(*row)
    return table


def _figure_rows(description: Description) -> Iterator[tuple[str, str, str]]:
    figures = description.figures
    together = figures.period > 1
    yield (
        "spectral gap",
        f"{figures.spectral_gap:.4g}",
        f"1 - |λ2| of the mixing matrix{f' of {figures.period} rounds' if together else ''}",
    )
    yield "rounds to 1/1000", _count(figures.rounds), _rounds_formula(figures)
    if figures.drawn_rounds is not None:
        remark = "at most, on average, when each node draws one neighbour"
        yield "  of one drawn", _count(figures.drawn_rounds), remark
    remark = "hops between any two nodes" + (", edges of all rounds together" if together else "")
    yield "diameter", "none" if figures.diameter is None else str(figures.diameter), remark
    if figures.is_doubly_stochastic:
        yield "doubly stochastic", "yes", "the mean of all nodes stays as it is"
    else:
        yield "doubly stochastic", "no", "the mean of all nodes moves"
    yield from _weight_rows(description)


def _rounds_formula(figures: Figures) -> str:
    if figures.rounds is None:
        return "|λ2| = 1: never"
    times = f"{figures.period} " if figures.period > 1 else ""
    return f"{times}ln 1000 / -ln |λ2|, of the expected disagreement"


def _weight_rows(description: Description) -> Iterator[tuple[str, str, str]]:
    """Yield who counts how much in what the nodes agree on."""
    weights, names = description.figures.weights, description.names
    extremes = description.extremes()
    if weights is None:
        return
    if extremes is None:
        yield "stationary weights", f"{weights[0]:.4g}", "each: they agree on the plain mean"
        return
    for title, index in zip(("smallest weight", "largest weight"), extremes, strict=True):
        share = weights[index] * len(weights)
        remark = f"of {names[index]} in what they agree on, {share:.3g} times a fair share"
        yield title, f"{weights[index]:.4g}", remark


def _count(rounds: int | None) -> str:
    return "never" if rounds is None else str(rounds)


def _table(*headings: str, is_numeric: bool = False) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for position, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if is_numeric and position else "left",
            no_wrap=is_numeric or position == 0,
        )
    return table


def _console() -> Console:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)  # the terminal wraps better than a table does
    return console
