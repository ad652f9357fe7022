"""Named topologies, and the neighbours that they give to each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpwa.errors import UserError
from dpwa.registry import Registry
from dpwa.types import NoOptions, StrictModel

NeighbourRule = Callable[[Any, int, int, int], Sequence[int]]
PeriodRule = Callable[[Any, int], int]


def same_every_round(options: object, nodes: int) -> int:  # noqa: ARG001
    """Period of a topology that never changes: 1 round."""
    return 1


@dataclass(frozen=True)
class Topology:
    """A named topology.

    Attributes:
        name: what configurations call it.
        options: the model of its options.
        rule: the function `(options, index, nodes, round_number) -> neighbours`: the positions of
            the nodes that node `index` pulls from in this round. Positions count from 0.
        period: the function `(options, nodes) -> rounds`; after so many rounds all repeats.
    """

    name: str
    options: type[StrictModel]
    rule: NeighbourRule
    period: PeriodRule = same_every_round

    @property
    def summary(self) -> str:
        """What it is, in one line: the first of the rule's docstring."""
        return (self.rule.__doc__ or "").strip().partition("\n")[0]


_REGISTRY: Registry[Topology] = Registry("topology")


def register_topology(
    name: str, options: type[StrictModel] = NoOptions, period: PeriodRule = same_every_round
) -> Callable[[NeighbourRule], NeighbourRule]:
    """Return a decorator that makes a rule available to configurations as `topology: NAME`.

    Raises:
        UserError: another topology already has this name.
    """

    def register(rule: NeighbourRule) -> NeighbourRule:
        _REGISTRY.add(name, rule, Topology(name, options, rule, period))
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
    """Return the nodes that node `index` of `nodes` pulls from in a round, from 0, sorted.

    Raises `UserError` if the topology does not fit this number of nodes, or a registered rule
    returned something else than other nodes, each once.
    """
    found = tuple(sorted(topology.rule(options, index, nodes, round_number)))
    in_range = not found or (found[0] >= 0 and found[-1] < nodes)
    if not in_range or index in found or len(set(found)) < len(found):
        raise UserError(
            f"topology {topology.name!r} returned {list(found)} for node {index} of {nodes} in "
            f"round {round_number}; expected other nodes from 0 to {nodes - 1}, each once"
            " [DPWA-E009]"
        )
    return found


@dataclass(frozen=True)
class EdgeList:
    """Who pulls from whom."""

    names: tuple[str, ...]  # of all nodes, in the order of their positions
    # for each node the positions of those that it pulls from, sorted, each once
    pulls: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, names: Sequence[str], edges: Iterable[tuple[str, str]]) -> EdgeList:
        """Make it of pairs `(who pulls, from whom)`, any of which may be there several times."""
        position = {name: index for index, name in enumerate(names)}
        pulls: list[set[int]] = [set() for _ in names]
        for puller, source in edges:
            pulls[position[puller]].add(position[source])
        return cls(tuple(names), tuple(tuple(sorted(sources)) for sources in pulls))

    def neighbours(self, index: int) -> tuple[int, ...]:
        return self.pulls[index]


def edges_rule(edges: EdgeList) -> NeighbourRule:
    """Return the rule of these edges; it raises UserError for another number of nodes."""

    def rule(options: object, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
        if nodes != len(edges.names):
            raise UserError(
                f"the edges are of {len(edges.names)} nodes, expected {nodes} [DPWA-E011]"
            )
        return edges.neighbours(index)

    return rule


def edges_topology(edges: EdgeList) -> Topology:
    """Return the topology `file` with these edges."""
    return Topology("file", topology("file").options, edges_rule(edges))
