"""Topologies decide from which peers a node may fetch.

    random, full            all other nodes
    ring, star              the two neighbours on a circle; one node connected to all others
    grid, torus             the neighbours in rows and columns
    exponential             the nodes 1, 2, 4, 8, ... positions further on a ring
    one_peer_exponential    one of these nodes in each round
    small_world             a ring with shortcuts
    file                    the edges in a file of the user

A topology is a pure function of a node's position, the number of nodes and the round. Flow control
picks one of the neighbours that the topology returns. docs/topologies.md compares the topologies.

Register your own topology under a name that configurations can use:

>>> from dpwa.policy.topology import register_topology
>>> @register_topology("chain")
... def chain(options, index, nodes, round_number):
...     '''The nodes before and after on a line.'''
...     return [other for other in (index - 1, index + 1) if 0 <= other < nodes]
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dpwa.errors import UserError
from dpwa.registry import Registry
from dpwa.types import Fraction, NoOptions, StrictModel, Unlike, refusal

NeighbourRule = Callable[[Any, int, int, int], Sequence[int]]
PeriodRule = Callable[[Any, int], int]


def same_every_round(options: object, nodes: int) -> int:  # noqa: ARG001
    """The period of a topology that never changes, which is 1 round."""
    return 1


@dataclass(frozen=True)
class Topology:
    """A named topology.

    Attributes:
        name: its name in configurations.
        options: the model of its options.
        rule: the function `(options, index, nodes, round_number) -> neighbours`. It returns the
            positions of the nodes that node `index` pulls from in this round, counted from 0.
        period: the function `(options, nodes) -> rounds`. It returns the number of rounds after
            which the neighbours repeat.
    """

    name: str
    options: type[StrictModel]
    rule: NeighbourRule
    period: PeriodRule = same_every_round

    @property
    def summary(self) -> str:
        """A description in one line. It is the first line of the rule's docstring."""
        return (self.rule.__doc__ or "").strip().partition("\n")[0]


_REGISTRY: Registry[Topology] = Registry("topology")


def register_topology(
    name: str, options: type[StrictModel] = NoOptions, period: PeriodRule = same_every_round
) -> Callable[[NeighbourRule], NeighbourRule]:
    """Return a decorator that makes a rule available to configurations as `topology: NAME`.

    Raises:
        UserError: a different topology already has this name.
    """

    def register(rule: NeighbourRule) -> NeighbourRule:
        _REGISTRY.add_item(name, rule, Topology(name, options, rule, period))
        return rule

    return register


def topology(name: str) -> Topology:
    """Return the topology of this name, or raise `UnknownNameError`."""
    return _REGISTRY.get(name)


def topology_names() -> tuple[str, ...]:
    """Names of all registered topologies, in the order of registration."""
    return _REGISTRY.names()


def neighbours_of(
    topology: Topology, options: StrictModel, index: int, nodes: int, round_number: int
) -> tuple[int, ...]:
    """Return the nodes from which node `index` may pull in a round, as sorted positions from 0.

    Raises `UserError` if the topology does not fit this number of nodes, or if a registered rule
    did not return distinct other nodes.
    """
    found = tuple(sorted(topology.rule(options, index, nodes, round_number)))
    in_range = not found or (found[0] >= 0 and found[-1] < nodes)
    if not in_range or index in found or len(set(found)) < len(found):
        raise UserError(
            f"topology {topology.name!r} returned {list(found)} for node {index} of {nodes} in "
            f"round {round_number}. Expected distinct other nodes from 0 to {nodes - 1}"
            " [DPWA-E009]"
        )
    return found


@dataclass(frozen=True)
class EdgeList:
    """The edges of a graph. An edge goes from a node that pulls to the node that it pulls from."""

    names: tuple[str, ...]  # the names of all nodes, in order of their positions
    # for each node, the sorted positions of the nodes from which it pulls, each once
    pulls: tuple[tuple[int, ...], ...]

    @classmethod
    def from_pairs(cls, names: Sequence[str], edges: Iterable[tuple[str, str]]) -> EdgeList:
        """Make an edge list of name pairs `(puller, source)`. A pair may occur several times."""
        position = {name: index for index, name in enumerate(names)}
        pulls: list[set[int]] = [set() for _ in names]
        for puller, source in edges:
            pulls[position[puller]].add(position[source])
        return cls(tuple(names), tuple(tuple(sorted(sources)) for sources in pulls))


def edges_topology(edges: EdgeList) -> Topology:
    """Return a topology with the given edges. `UserError` unless the number of nodes matches."""

    def rule(options: object, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
        if nodes != len(edges.names):
            raise UserError(
                f"the list of edges has {len(edges.names)} nodes, but this run has {nodes} nodes "
                "[DPWA-E011]"
            )
        return edges.pulls[index]

    return Topology("file", topology("file").options, rule)


MAX_SEED = 2**63 - 1


def _check_even(value: int) -> int:
    if value < 2 or value % 2:
        raise refusal("an even number of at least 2")
    return value


class LatticeOptions(StrictModel):
    """Options of `grid` and `torus`."""

    columns: int | None = Field(
        default=None,
        ge=1,
        description="number of nodes in a row. By default, the grid is as square as possible",
    )


class StarOptions(StrictModel):
    """Options of `star`."""

    center: int = Field(default=0, ge=0, description="position of the center node, counted from 0")


class SmallWorldOptions(StrictModel):
    """Options of `small_world`."""

    neighbours: Annotated[int, AfterValidator(_check_even)] = Field(
        default=4, description="even number of neighbours of a node on the ring"
    )
    rewired: Fraction = Field(
        default=0.1, description="probability that an edge becomes a shortcut"
    )
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="seed of the random shortcuts")


class FileOptions(StrictModel):
    """Options of `file`."""

    path: Annotated[str, Unlike.ALLOWED] = Field(
        description="file with one edge per line: w1 w2, or w1 -> w2"
    )


def log2_ceiling(nodes: int) -> int:
    return (nodes - 1).bit_length()


def exponential_period(options: object, nodes: int) -> int:  # noqa: ARG001
    """The period of `one_peer_exponential` in rounds: max(1, ceil(log2 N))."""
    return max(1, log2_ceiling(nodes))


@register_topology("random")
def random_peer(options: NoOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """All other nodes. Flow control picks one of them in each round."""
    return _others(index, nodes)


@register_topology("full")
def full(options: NoOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """All other nodes, as with random. This is the complete graph."""
    return _others(index, nodes)


@register_topology("ring")
def ring(options: NoOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """The next and the previous node on a ring."""
    return _circulant(index, nodes, (-1, 1))


@register_topology("grid", LatticeOptions)
def grid(options: LatticeOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """The nodes above, below, left and right, in rows and columns with borders."""
    width = columns_of(options.columns, nodes)
    column = index % width
    found = [index - width, index + width]
    if column > 0:
        found.append(index - 1)
    if column < width - 1:
        found.append(index + 1)
    return sorted(other for other in found if 0 <= other < nodes)


@register_topology("torus", LatticeOptions)
def torus(options: LatticeOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """A grid whose opposite edges are connected.

    Each row and each column is a circle. If the last row is short, some columns have one node less
    than the others.
    """
    width = columns_of(options.columns, nodes)
    row, column = divmod(index, width)
    row_length = min(width, nodes - row * width)
    column_length = len(range(column, nodes, width))
    found = {row * width + (column + step) % row_length for step in (-1, 1)}
    found |= {(row + step) % column_length * width + column for step in (-1, 1)}
    return sorted(found - {index})


@register_topology("exponential")
def exponential(options: NoOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """The nodes 1, 2, 4, 8, ... positions further on a ring.

    Neighbours (i + 2^k) mod N for k = 0 .. ceil(log2 N) - 1.

    Source: the static exponential graph of Assran et al., "Stochastic Gradient Push" (2019), and
    Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training" (2021).
    """
    return _circulant(index, nodes, [2**k for k in range(log2_ceiling(nodes))])


@register_topology("one_peer_exponential", period=exponential_period)
def one_peer_exponential(
    options: NoOptions, index: int, nodes: int, round_number: int
) -> Sequence[int]:
    """One node in each round: 1, then 2, then 4, ... positions further on a ring.

    Neighbour (i + 2^(t mod ceil(log2 N))) mod N in round t. With f = 0.5 and snapshots of the same
    round, ceil(log2 N) rounds give the exact mean if and only if N is a power of two.

    Source: Assran et al. (2019) and Ying et al. (2021), as for `exponential`.
    """
    k = round_number % exponential_period(options, nodes)
    return _circulant(index, nodes, (2**k,))


@register_topology("star", StarOptions)
def star(options: StarOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """Each node and the center pull from each other."""
    if options.center >= nodes:
        raise UserError(
            f"star: center: expected a position from 0 to {nodes - 1} (got {options.center})"
            " [DPWA-E010]"
        )
    return _others(index, nodes) if index == options.center else (options.center,)


@register_topology("small_world", SmallWorldOptions)
def small_world(
    options: SmallWorldOptions,
    index: int,
    nodes: int,
    round_number: int,  # noqa: ARG001
) -> Sequence[int]:
    """The nearest nodes on a ring, with some random shortcuts.

    Source: Watts and Strogatz, "Collective dynamics of small-world networks" (1998).
    """
    graph = small_world_graph(nodes, options.neighbours, options.rewired, options.seed)
    return graph[index]


@register_topology("file", FileOptions)
def file(options: FileOptions, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
    """The edges in a file, with one edge per line.

    This rule only reserves the name. `edges_topology` makes the topology after the file was read.
    """
    raise UserError(
        f"the file of edges {options.path} is not loaded. Call load_config first [DPWA-E012]"
    )


def _others(index: int, nodes: int) -> Sequence[int]:
    return [*range(index), *range(index + 1, nodes)]


def _circulant(index: int, nodes: int, steps: Sequence[int]) -> Sequence[int]:
    """Return the nodes at the offsets `steps` from `index` on a circle, without node `index`."""
    return sorted({(index + step) % nodes for step in steps} - {index})


def columns_of(columns: int | None, nodes: int) -> int:
    """Return the number of columns of a grid of nodes. For `None`, the nodes form a rectangle.

    The rectangle is as square as possible. If it would be more than twice as wide as high (for
    example if N is prime), a row has ceil(sqrt(N)) nodes.
    """
    if columns is not None:
        return min(columns, nodes)
    rows = next(rows for rows in range(math.isqrt(nodes), 0, -1) if nodes % rows == 0)
    widest = 2 * rows
    return nodes // rows if nodes // rows <= widest else math.isqrt(nodes - 1) + 1


@lru_cache(maxsize=8)  # every node asks for its neighbours in the same graph in every round
def small_world_graph(
    nodes: int, neighbours: int, rewired: float, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Return each node's sorted neighbours in a small-world graph of Watts and Strogatz (1998).

    Each node on a ring is connected to the `neighbours` nearest nodes. Then the far end of each
    edge moves, with probability `rewired`, to a random node that is no neighbour yet. If the graph
    would fall apart, an edge of the ring is restored, so the graph is always connected.
    """
    rng = random.Random(f"{seed} {nodes}")
    graph = [_nearest(index, nodes, neighbours) for index in range(nodes)]
    for distance in range(1, min(neighbours // 2, (nodes - 1) // 2) + 1):
        for index in range(nodes):
            if rng.random() < rewired:
                _rewire(graph, index, (index + distance) % nodes, rng)
    _join(graph)
    return tuple(tuple(sorted(others)) for others in graph)


def _nearest(index: int, nodes: int, neighbours: int) -> set[int]:
    half = neighbours // 2
    return {other % nodes for other in range(index - half, index + half + 1)} - {index}


def _rewire(graph: list[set[int]], index: int, other: int, rng: random.Random) -> None:
    """Replace the neighbour `other` of `index` by a random non-neighbour, if possible."""
    taken = graph[index]
    if other not in taken or len(taken) == len(graph) - 1:
        return
    drawn = index
    while drawn == index or drawn in taken:
        # Only the method `random` of `Random` returns the same numbers in every Python version.
        drawn = int(rng.random() * len(graph))
    _disconnect(graph, index, other)
    _connect(graph, index, drawn)


def _join(graph: list[set[int]]) -> None:
    """Connect each node to the next node on the ring, if no path connects the two nodes."""
    part = _parts(graph)
    for index in range(len(graph) - 1):
        if part[index] != part[index + 1]:
            _connect(graph, index, index + 1)
            merged = part[index + 1]
            part = [part[index] if number == merged else number for number in part]


def _parts(graph: list[set[int]]) -> list[int]:
    """Return, for each node, the number of the connected component that contains the node."""
    part = [-1] * len(graph)
    for start in range(len(graph)):
        waiting = [start] if part[start] < 0 else []
        while waiting:
            node = waiting.pop()
            part[node] = start
            waiting += [other for other in graph[node] if part[other] < 0]
    return part


def _connect(graph: list[set[int]], one: int, two: int) -> None:
    graph[one].add(two)
    graph[two].add(one)


def _disconnect(graph: list[set[int]], one: int, two: int) -> None:
    graph[one].discard(two)
    graph[two].discard(one)
