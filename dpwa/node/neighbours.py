"""Which peers a node may fetch from in each round, by the topology of the configuration."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dpwa.policy.topology import Topology, neighbours_of
from dpwa.policy.topology.registry import same_every_round
from dpwa.types import StrictModel


class Neighbours:
    """The neighbours of one node.

    Positions are those of the configuration; nodes that joined at run time follow by name, and
    those that are out of view have none, so all nodes that see the same peers agree.

    Args:
        topology: who is next to whom.
        options: its options.
        own: the name of this node.
        names: all nodes of the configuration, in order.
    """

    def __init__(
        self, topology: Topology, options: StrictModel, own: str, names: Sequence[str]
    ) -> None:
        self._topology = topology
        self._options = options
        self._own = own
        self._order = {name: position for position, name in enumerate(names)}
        self._is_everybody = topology.name in ("random", "full")

    @property
    def are_tagged(self) -> bool:
        """Whether they change with the round, so that the rounds of both ends must match."""
        return self._topology.period is not same_every_round

    def among(self, peers: Collection[str], round_number: int) -> Collection[str] | None:
        """Return the names of the neighbours in a round; `None` when all peers are.

        Raises:
            UserError: a topology of the user's own returned what cannot be.
        """
        if self._is_everybody:
            return None
        last = len(self._order)
        nodes = sorted([self._own, *peers], key=lambda n: (self._order.get(n, last), n))
        own, count = nodes.index(self._own), len(nodes)
        found = neighbours_of(self._topology, self._options, own, count, round_number)
        return [nodes[position] for position in found]
