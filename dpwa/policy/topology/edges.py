"""Edges of the user's own as a topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpwa.errors import UserError
from dpwa.policy.topology.registry import NeighbourRule, Topology, topology


@dataclass(frozen=True)
class EdgeList:
    """Who pulls from whom.

    Attributes:
        names: the names of all nodes, in the order of their positions.
        pulls: for each node the positions of those that it pulls from, sorted, each once.
    """

    names: tuple[str, ...]
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
        """Return the positions of the nodes that node `index` pulls from."""
        return self.pulls[index]


def edges_rule(edges: EdgeList) -> NeighbourRule:
    """Return the rule of these edges; it raises UserError for another number of nodes."""

    def rule(options: object, index: int, nodes: int, round_number: int) -> Sequence[int]:  # noqa: ARG001
        if nodes != len(edges.names):
            raise UserError(f"the edges are of {len(edges.names)} nodes, expected {nodes}")
        return edges.neighbours(index)

    return rule


def edges_topology(edges: EdgeList) -> Topology:
    """Return the topology `file` with these edges."""
    return Topology("file", topology("file").options, edges_rule(edges))
