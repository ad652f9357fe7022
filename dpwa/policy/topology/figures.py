"""All figures of a topology at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpwa.policy.topology.mixing import (
    Adjacency,
    Matrix,
    Vector,
    drawn_contraction,
    is_doubly_stochastic,
    period_adjacency,
    period_matrix,
    rounds_to_reduce,
    second_modulus,
    stationary_weights,
)
from dpwa.policy.topology.paths import diameter, unreachable
from dpwa.policy.topology.registry import Topology
from dpwa.types import StrictModel

REDUCTION = 1000.0  # of distances; their squares, as in V, get smaller by the square of it


@dataclass(frozen=True)
class Figures:
    """What a topology does with N nodes and a factor, over all rounds of its period.

    Attributes:
        nodes: N.
        factor: f.
        period: number of rounds after which all repeats.
        matrix: what the rounds of a period do together, shape `(N, N)`; see `period_matrix`.
        second_modulus: |lambda2| of the matrix.
        rounds: for a thousandth of the disagreement, by |lambda2|; `None`: never.
        drawn_rounds: the same at most, when each node draws one neighbour a round, by
            `drawn_contraction`; `None`: there is nothing to draw, or never.
        diameter: most hops between two nodes, edges of all rounds taken together; `None`: infinite.
        unreachable: `(i, j)` if nothing of node j ever comes to node i.
        is_doubly_stochastic: whether the mean of all nodes stays as it is.
        weights: of each node in what they agree on, shape `(N,)`; `None` if they do not.
    """

    nodes: int
    factor: float
    period: int
    matrix: Matrix
    second_modulus: float
    rounds: int | None
    drawn_rounds: int | None
    diameter: int | None
    unreachable: tuple[int, int] | None
    is_doubly_stochastic: bool
    weights: Vector | None

    @property
    def spectral_gap(self) -> float:
        """1 - |lambda2|, over a period."""
        return 1.0 - self.second_modulus


def figures_of(topology: Topology, options: StrictModel, nodes: int, factor: float) -> Figures:
    """Work out all figures.

    Takes about a second for 1000 nodes and a minute for 4096; several if edges are directed and
    follow no pattern.

    Raises:
        UserError: as `neighbours_of` does.
    """
    period = topology.period(options, nodes)
    pulls = period_adjacency(topology, options, nodes)
    matrix = period_matrix(topology, options, nodes, factor)
    modulus = second_modulus(matrix)
    hops = diameter(pulls)
    weights = stationary_weights(matrix) if hops is not None and factor > 0.0 else None
    return Figures(
        nodes=nodes,
        factor=factor,
        period=period,
        matrix=matrix,
        second_modulus=modulus,
        rounds=rounds_to_reduce(modulus, period, REDUCTION),
        drawn_rounds=_drawn_rounds(pulls, factor, weights) if period == 1 else None,
        diameter=hops,
        unreachable=unreachable(pulls) if hops is None else None,
        is_doubly_stochastic=is_doubly_stochastic(matrix),
        weights=weights,
    )


def _drawn_rounds(pulls: Adjacency, factor: float, weights: Vector | None) -> int | None:
    if weights is None or int(pulls.sum(axis=1).max()) < 2:
        return None
    return rounds_to_reduce(math.sqrt(drawn_contraction(pulls, factor, weights)), 1, REDUCTION)
