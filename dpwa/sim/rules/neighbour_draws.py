"""Whom nodes ask: a neighbour drawn for every node at once, each with the same probability.

That is what flow control comes to as long as no fetch fails, as all peers have the same score then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpwa.config import Config
from dpwa.config.graphs import topology_of
from dpwa.policy.topology import Topology, neighbours_of
from dpwa.types import StrictModel

Integers = NDArray[np.int64]
EVERYBODY = ("random", "full")


class NeighbourDraws:
    """Draws of peers in the topology of a configuration.

    Args:
        config: of the run.
        nodes: N, how many there are.

    Raises:
        UserError: the topology does not fit the number of nodes.
    """

    def __init__(self, config: Config, nodes: int) -> None:
        self._nodes = nodes
        self._graph: _Graph | None = None
        if config.topology not in EVERYBODY:
            names = [node.name for node in config.nodes]
            options = config.options_of(config.topology)
            topology = topology_of(config.topology, options, names)
            self._graph = _Graph(topology, options, nodes)

    def draw(self, round_number: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw a peer for each node that has any.

        Returns:
            The nodes and their peers, both of shape (K,).
        """
        nodes = np.arange(self._nodes)
        if self._graph is None:
            if self._nodes < 2:
                return nodes[:0], nodes[:0]
            peers = rng.integers(self._nodes - 1, size=self._nodes)
            return nodes, peers + (peers >= nodes)
        first, degrees, flat = self._graph.at(round_number)
        asking = np.flatnonzero(degrees)
        position = (rng.random(self._nodes) * degrees).astype(np.int64)
        return asking, flat[(first + position)[asking]]


class _Graph:
    """The neighbours of all nodes in each round of a period, flat."""

    def __init__(self, topology: Topology, options: StrictModel, nodes: int) -> None:
        self._topology = topology
        self._options = options
        self._nodes = nodes
        self._period = topology.period(options, nodes)
        self._known: dict[int, tuple[Integers, Integers, Integers]] = {}

    def at(self, round_number: int) -> tuple[Integers, Integers, Integers]:
        """Return where the neighbours of each node begin, how many they are, and all of them."""
        phase = round_number % self._period
        if phase not in self._known:
            found: list[Sequence[int]] = [
                neighbours_of(self._topology, self._options, node, self._nodes, phase)
                for node in range(self._nodes)
            ]
            degrees = np.array([len(neighbours) for neighbours in found], dtype=np.int64)
            flat = np.concatenate([np.array(n, dtype=np.int64) for n in found])
            self._known[phase] = np.cumsum(degrees) - degrees, degrees, flat
        return self._known[phase]
