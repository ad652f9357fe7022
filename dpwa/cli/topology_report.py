"""What `dpwa topology` knows of one topology, as tables for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic_core import PydanticUndefined

from dpwa.cli import screen
from dpwa.config.graphs import disconnection
from dpwa.config.problems import listing
from dpwa.policy.mixing import Figures, Matrix, figures_of, mixing_matrix
from dpwa.policy.topology import FileOptions, Topology, neighbours_of, topology, topology_names
from dpwa.types import JsonObject, StrictModel

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MOST_MATRIX_NODES = 12
MOST_ROWS = 64
NOTHING = "·"

Neighbours = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Description:
    topology: Topology
    options: StrictModel
    names: tuple[str, ...]
    round_number: int | None  # that was asked for
    rounds: Mapping[int, Neighbours]  # to be shown
    matrix: Matrix  # of the round that was asked for, else of a whole period; shape `(N, N)`
    figures: Figures  # of the whole period

    @property
    def shows_matrix(self) -> bool:
        return len(self.names) <= MOST_MATRIX_NODES

    def extremes(self) -> tuple[int, int] | None:
        """Return who has the smallest and the largest weight; `None` if all weigh the same."""
        weights = self.figures.weights
        if weights is None or self.figures.is_doubly_stochastic:
            return None
        rounded = np.round(weights, 12)  # of those that only rounding tells apart, the first
        return int(np.argmin(rounded)), int(np.argmax(rounded))

    def to_json(self) -> JsonObject:
        figures = self.figures
        return {
            "topology": self.topology.name,
            "options": self.options.model_dump(mode="json"),
            "nodes": list(self.names),
            "factor": figures.factor,
            "period": figures.period,
            "rounds": [
                {"round": number, "neighbours": self._by_name(neighbours)}
                for number, neighbours in self.rounds.items()
            ],
            "matrix": self.matrix.tolist() if self.shows_matrix else None,
            "spectral_gap": figures.spectral_gap,
            "rounds_to_1000th": figures.rounds,
            "rounds_to_1000th_drawn": figures.drawn_rounds,
            "diameter": figures.diameter,
            "unreachable": figures.unreachable and [self.names[i] for i in figures.unreachable],
            "doubly_stochastic": figures.is_doubly_stochastic,
            "stationary_weights": self._weights_by_name(),
        }

    def _by_name(self, neighbours: Neighbours) -> dict[str, list[str]]:
        names = self.names
        return {
            name: [names[other] for other in others]
            for name, others in zip(names, neighbours, strict=True)
        }

    def _weights_by_name(self) -> dict[str, float] | None:
        weights = self.figures.weights
        return None if weights is None else dict(zip(self.names, weights.tolist(), strict=True))


def describe(
    topology: Topology,
    options: StrictModel,
    names: Sequence[str],
    factor: float,
    round_number: int | None,
) -> Description:
    nodes = len(names)
    figures = figures_of(topology, options, nodes, factor)
    numbers = range(figures.period) if round_number is None else [round_number]
    return Description(
        topology=topology,
        options=options,
        names=tuple(names),
        round_number=round_number,
        rounds={number: _neighbours(topology, options, nodes, number) for number in numbers},
        matrix=figures.matrix
        if round_number is None
        else mixing_matrix(topology, options, nodes, factor, round_number),
        figures=figures,
    )


def listing_of() -> list[JsonObject]:
    return [
        {"name": name, "options": _defaults(topology(name)), "summary": topology(name).summary}
        for name in topology_names()
    ]


def _neighbours(
    topology: Topology, options: StrictModel, nodes: int, round_number: int
) -> Neighbours:
    return tuple(
        neighbours_of(topology, options, index, nodes, round_number) for index in range(nodes)
    )


def _defaults(topology: Topology) -> JsonObject:
    fields = topology.options.model_fields
    defaults = {key: field.get_default(call_default_factory=False) for key, field in fields.items()}
    return {key: None if value is PydanticUndefined else value for key, value in defaults.items()}


def show_listing() -> None:
    rows = listing_of()
    console = screen.console()
    summaries = [(row["name"], row["summary"]) for row in rows]
    headings = ("topology", "who is pulled from")
    console.print(screen.table(headings, summaries, console.width, text=[1]))
    console.print("\nOptions, set with --set KEY=VALUE:")
    for row in rows:
        if row["options"]:
            console.print(screen.plain(f"{row['name']}: {_options(row['options'])}"))


def show(description: Description) -> None:
    console = screen.console()
    title = f"{title_of(description)}, factor {description.figures.factor:g}"
    console.print(screen.plain(title), style="bold")
    console.print(_neighbour_table(description, console.width))
    if len(description.names) > MOST_ROWS:
        rest = len(description.names) - MOST_ROWS
        console.print(f"and {rest} more; --json has them all")
    console.print()
    _show_matrix(description, console)
    console.print()
    rows = list(_figure_rows(description))
    console.print(screen.table(("", "", ""), rows, console.width, right=[1], text=[2]))
    if description.figures.unreachable is not None:
        text = disconnection(description.figures.unreachable, description.names)
        console.print(screen.plain(f"Not connected: {text}."), style="bold red")


def title_of(description: Description) -> str:
    count = len(description.names)
    options, number = description.options, description.round_number
    name = description.topology.name
    if isinstance(options, FileOptions):
        name = Path(options.path).name
    of_round = "" if number is None else f", round {number}"
    return f"{name}, {count} node{'s' * (count != 1)}{of_round}"


def _options(defaults: JsonObject) -> str:
    return ", ".join(key if value is None else f"{key}={value}" for key, value in defaults.items())


def _neighbour_table(description: Description, columns: int) -> RenderableType:
    names = description.names
    several = len(description.rounds) > 1
    headings = [f"round {n}" if several else "pulls from" for n in description.rounds]
    rows = []
    for index, name in enumerate(names[:MOST_ROWS]):
        cells = [
            listing([names[other] for other in neighbours[index]]) or "nobody"
            for neighbours in description.rounds.values()
        ]
        rows.append((name, *cells))
    text = range(1, len(headings) + 1)
    return screen.table(("node", *headings), rows, columns, text=text)


def _show_matrix(description: Description, console: Console) -> None:
    if not description.shows_matrix:
        text = f"The mixing matrix is shown for at most {MOST_MATRIX_NODES} nodes."
        console.print(screen.plain(text))
        return
    names = description.names
    numbers = [str(number) for number in range(1, len(names) + 1)]
    for heads, titles in (
        (list(names), list(names)),
        (numbers, list(map(" ".join, zip(numbers, names, strict=True)))),
        (numbers, numbers),
    ):  # where the names are too long, their numbers stand for them
        needed = max(map(len, titles)) + sum(1 + max(len(head), len("0.000")) for head in heads)
        if needed <= console.width:
            console.print(screen.plain(_matrix_title(description)), style="bold")
            console.print(_matrix_table(description, heads, titles, console.width))
            return
    console.print(
        screen.plain(f"The mixing matrix needs {needed} columns; --json has it on any terminal.")
    )


def _matrix_title(description: Description) -> str:
    period = description.figures.period
    of_rounds = description.round_number is None and period > 1
    which = f" of {period} rounds together" if of_rounds else ""
    return f"Mixing matrix{which} (row: who pulls; column: whose parameters)"


def _matrix_table(
    description: Description, heads: Sequence[str], titles: Sequence[str], columns: int
) -> RenderableType:
    rows = [
        (title, *(f"{value:.3f}" if value else NOTHING for value in row))
        for title, row in zip(titles, description.matrix, strict=True)
    ]
    return screen.table(("", *heads), rows, columns, right=range(1, len(heads) + 1))


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
    return f"{times}ln 1000 / -ln |λ2|, of the expected distance"


def _weight_rows(description: Description) -> Iterator[tuple[str, str, str]]:
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
