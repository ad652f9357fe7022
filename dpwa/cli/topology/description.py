"""What `dpwa topology` knows about one topology, for the table, the drawing and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic_core import PydanticUndefined

from dpwa.policy.topology import Topology, neighbours_of, topology, topology_names
from dpwa.policy.topology.figures import Figures, figures_of
from dpwa.policy.topology.mixing import Matrix, mixing_matrix
from dpwa.types import JsonObject, StrictModel

MOST_MATRIX_NODES = 12

Neighbours = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Description:
    """One topology of so many nodes.

    Attributes:
        topology: what is described.
        options: its options.
        names: of the nodes, in the order of their positions.
        round_number: the one that was asked for, if any.
        rounds: who pulls from whom in each round that is to be shown.
        matrix: of the round that was asked for, else of a whole period; shape `(N, N)`.
        figures: of the whole period, whatever round was asked for.
    """

    topology: Topology
    options: StrictModel
    names: tuple[str, ...]
    round_number: int | None
    rounds: Mapping[int, Neighbours]
    matrix: Matrix
    figures: Figures

    @property
    def shows_matrix(self) -> bool:
        """Whether the matrix is small enough to be read."""
        return len(self.names) <= MOST_MATRIX_NODES

    def extremes(self) -> tuple[int, int] | None:
        """Return who has the smallest and the largest weight; `None` if all weigh the same."""
        weights = self.figures.weights
        if weights is None or self.figures.is_doubly_stochastic:
            return None
        rounded = np.round(weights, 12)  # of those that only rounding tells apart, the first
        return int(np.argmin(rounded)), int(np.argmax(rounded))

    def to_json(self) -> JsonObject:
        """Return everything as plain values, for programs."""
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
    """Work out all there is to know.

    Raises:
        UserError: the topology does not fit this number of nodes.
    """
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
    """Return name, options with their defaults, and summary of every topology."""
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
    """Return the default of each option, `None` for one that has none."""
    fields = topology.options.model_fields
    defaults = {key: field.get_default(call_default_factory=False) for key, field in fields.items()}
    return {key: None if value is PydanticUndefined else value for key, value in defaults.items()}
