"""Mixing matrices: the expected effect of gossip over a topology on the parameters.

One round in which nodes pull turns the parameters X, shape `(N, ...)`, into W X. Every row of W has
the sum 1. Its second largest eigenvalue decides how fast the nodes converge.

Source: Xiao and Boyd, "Fast linear iterations for distributed averaging" (2004).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpwa.policy.topology import Topology, neighbours_of
from dpwa.types import StrictModel

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Adjacency = NDArray[np.bool_]

ROUNDING = 1e-12  # smaller differences are rounding errors


def adjacency(
    topology: Topology, options: StrictModel, nodes: int, round_number: int = 0
) -> Adjacency:
    """Return the bool matrix `(N, N)` of a round, in which [i, j] means that i pulls from j."""
    pulls = np.zeros((nodes, nodes), dtype=np.bool_)
    for index in range(nodes):
        pulls[index, list(neighbours_of(topology, options, index, nodes, round_number))] = True
    return pulls


def period_adjacency(topology: Topology, options: StrictModel, nodes: int) -> Adjacency:
    """Return the bool matrix `(N, N)`, in which [i, j] means that i pulls from j in some round."""
    pulls = np.zeros((nodes, nodes), dtype=np.bool_)
    for round_number in range(topology.period(options, nodes)):
        pulls |= adjacency(topology, options, nodes, round_number)
    return pulls


def pull_matrix(pulls: Adjacency, factor: float) -> Matrix:
    """Return W = (1-f) I + f A/d, the mean effect if each node merges a random one of d peers."""
    degrees = pulls.sum(axis=1)
    matrix: Matrix = pulls * (factor / np.maximum(degrees, 1))[:, None]
    np.fill_diagonal(matrix, np.where(degrees > 0, 1.0 - factor, 1.0))
    return matrix


def mixing_matrix(
    topology: Topology, options: StrictModel, nodes: int, factor: float, round_number: int = 0
) -> Matrix:
    """Return the mixing matrix W of one round, shape `(N, N)`. See `pull_matrix`."""
    return pull_matrix(adjacency(topology, options, nodes, round_number), factor)


def period_matrix(topology: Topology, options: StrictModel, nodes: int, factor: float) -> Matrix:
    """Return the mixing matrix of a period of T rounds, W_(T-1) ... W_1 W_0, shape `(N, N)`."""
    product = mixing_matrix(topology, options, nodes, factor)
    for round_number in range(1, topology.period(options, nodes)):
        product = mixing_matrix(topology, options, nodes, factor, round_number) @ product
    return product


def second_modulus(matrix: Matrix) -> float:
    """Return |lambda2|, the second largest modulus of the eigenvalues, or 0 for a single node."""
    moduli = np.sort(np.abs(_eigenvalues(matrix)))
    return min(1.0, float(moduli[-2])) if len(moduli) > 1 else 0.0


def rounds_to_reduce(modulus: float, period: int = 1, reduction: float = 1000.0) -> int | None:
    """Return the number of rounds after which the expected disagreement is divided by `reduction`.

    This is T ln(reduction) / -ln|lambda2|, rounded up, or `None` if the disagreement does not
    shrink. `modulus` is |lambda2| of the matrix of a period.
    """
    if modulus >= 1.0 - ROUNDING:
        return None
    if modulus <= ROUNDING:
        return period
    return math.ceil(period * math.log(reduction) / -math.log(modulus))


def drawn_contraction(pulls: Adjacency, factor: float, weights: Vector) -> float:
    """Return rho, the largest expected ratio of the disagreements V after and before a round.

    V = sum_i p_i |x_i - m|^2 with m = sum_i p_i x_i, all p_i above 0. The mixing matrix does not
    show the noise of random picks. With P = A/d, W = (1-f) I + f P, D = diag(p) and a_i = p_i
    (1 - p_i), a round leaves E V' = sum of x^T Q x over the parameters, where

        Q = (1-f)^2 diag(a) + f(1-f) (diag(a) P + P^T diag(a)) + f^2 diag(P^T a)
            + W^T D^2 W - p p^T

    So E V' <= rho V, where rho is the largest eigenvalue of D^(-1/2) Q D^(-1/2). For the complete
    graph, both are equal: rho = 1 - 2f(1-f)N/(N-1) - f^2 [2/(N-1) - N/(N-1)^2].
    """
    rest = 1.0 - factor
    spread = weights * (1.0 - weights)
    peers, mean = pull_matrix(pulls, 1.0), pull_matrix(pulls, factor)
    cross = factor * rest * spread[:, None] * peers
    weighted = weights[:, None] * mean
    quadratic = cross + cross.T + weighted.T @ weighted - np.outer(weights, weights)
    quadratic[np.diag_indices(len(pulls))] += rest**2 * spread + factor**2 * (spread @ peers)
    roots = np.sqrt(weights)
    scaled = quadratic / np.outer(roots, roots)
    if _is_circulant(scaled):
        return float(np.fft.fft(scaled[0]).real.max())
    return float(np.linalg.eigvalsh(scaled)[-1])


def is_doubly_stochastic(matrix: Matrix) -> bool:
    """Return whether all rows and columns have the sum 1, so that mixing preserves the mean."""
    sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
    return bool(np.abs(sums - 1.0).max() <= len(matrix) * ROUNDING)


def stationary_weights(matrix: Matrix) -> Vector:
    """Return the nodes' weights p in the final consensus sum_i p_i x_i, shape `(N,)`.

    p W = p and sum p = 1, if the topology is strongly connected. All weights are 1/N if and only
    if the matrix is doubly stochastic.
    """
    nodes = len(matrix)
    if is_doubly_stochastic(matrix):
        return np.full(nodes, 1.0 / nodes)
    return np.linalg.solve(matrix.T - np.eye(nodes) + 1.0, np.ones(nodes))


def _eigenvalues(matrix: Matrix) -> NDArray[np.generic]:
    """Return all eigenvalues, by the fastest method for the structure of the matrix."""
    if _is_circulant(matrix):
        return np.fft.fft(matrix[0])
    # With undirected edges, pulling is a reversible walk, whose weights are the degrees. Scaled by
    # their square roots, the matrix is symmetric and has the same eigenvalues.
    roots = np.sqrt(np.maximum(np.count_nonzero(matrix, axis=1) - 1, 1))
    scaled = matrix * roots[:, None] / roots
    if np.abs(scaled - scaled.T).max() <= ROUNDING:
        return np.linalg.eigvalsh(scaled)
    return np.linalg.eigvals(matrix)


def _is_circulant(matrix: Matrix) -> bool:
    return bool(
        np.allclose(matrix[1:, 1:], matrix[:-1, :-1], rtol=0.0, atol=ROUNDING)
        and np.allclose(matrix[1:, 0], matrix[:-1, -1], rtol=0.0, atol=ROUNDING)
    )


def diameter(adjacency: NDArray[np.bool_]) -> int | None:
    """Return the maximum number of hops between two nodes, or `None` if a node is unreachable."""
    hops, missing = _spread(adjacency)
    return hops if missing is None else None


def unreachable(adjacency: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return the first `(i, j)` where no value of node j ever reaches node i, or `None`."""
    pullers, sources = np.nonzero(adjacency)
    count = len(adjacency)
    if _reaches_all(pullers, sources, count) and _reaches_all(sources, pullers, count):
        return None  # node 0 reaches all nodes, and all reach node 0: N edges, not N^2
    return _spread(adjacency)[1]


def _reaches_all(starts: NDArray[np.intp], ends: NDArray[np.intp], nodes: int) -> bool:
    order = np.argsort(starts, kind="stable")
    ends, bounds = ends[order], np.searchsorted(starts[order], np.arange(nodes + 1))
    seen, waiting = {0}, [0]
    while waiting:
        node = waiting.pop()
        new = set(ends[bounds[node] : bounds[node + 1]].tolist()) - seen
        seen |= new
        waiting += new
    return len(seen) >= nodes


def _spread(adjacency: NDArray[np.bool_]) -> tuple[int, tuple[int, int] | None]:
    """Return the hops until each node knows all others, and the first pair without a path.

    The knowledge of a node is one integer with a bit for each node, so that one `|` joins the
    knowledge about thousands of nodes.
    """
    nodes = len(adjacency)
    everything = (1 << nodes) - 1
    sources = [np.flatnonzero(row).tolist() for row in adjacency]
    knows = [1 << index for index in range(nodes)]
    for hops in range(nodes):
        if all(known == everything for known in knows):
            return hops, None
        learnt = [_united(knows, i, sources[i], everything) for i in range(nodes)]
        if learnt == knows:
            break
        knows = learnt
    index = next(i for i, known in enumerate(knows) if known != everything)
    missing = everything & ~knows[index]
    return nodes, (index, (missing & -missing).bit_length() - 1)


def _united(knows: list[int], index: int, sources: list[int], everything: int) -> int:
    known = knows[index]
    if known != everything:
        for source in sources:
            known |= knows[source]
    return known


REDUCTION = 1000.0  # of distances; their squares, such as V, shrink by its square


@dataclass(frozen=True)
class Figures:
    """The figures of a topology with N nodes and a factor f, over all rounds of its period."""

    nodes: int
    factor: float
    period: int  # number of rounds after which the neighbours repeat
    matrix: Matrix  # the effect of all rounds of a period, shape `(N, N)`; see `period_matrix`
    second_modulus: float  # |lambda2| of the matrix
    rounds: int | None  # until the disagreement is a thousandth, by |lambda2|; `None`: never
    # an upper bound for it, by `drawn_contraction`; `None`: no random picks, or never
    drawn_rounds: int | None
    diameter: int | None  # maximum hops between two nodes, over edges of all rounds
    unreachable: tuple[int, int] | None  # `(i, j)` if no value of node j ever reaches node i
    is_doubly_stochastic: bool  # whether the mean of all nodes stays the same
    weights: Vector | None  # of each node in the final value, shape `(N,)`; `None`: no agreement

    @property
    def spectral_gap(self) -> float:
        return 1.0 - self.second_modulus


def figures_of(topology: Topology, options: StrictModel, nodes: int, factor: float) -> Figures:
    """Compute a topology's figures, in about 1 s for 1000 nodes, and in minutes for 4096 nodes."""
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
