"""What one simulated node knows of its peers, and whom it asks by that.

The rules are those of `dpwa.node.peers`: flow control draws, slow peers take part in fewer draws,
deadlines are learnt, and of more peers than there may be connections some are near, and asked more.
As long as no fetch fails all have the same score, and neighbours are drawn for all nodes at once
(`NeighbourDraws`).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dpwa.config import Config
from dpwa.config.graphs import topology_of
from dpwa.node.repeats import MergedVersions
from dpwa.policy.deadlines import FLOOR_S, FetchTimes
from dpwa.policy.flow_control import HIGHEST_SCORE, FlowControl, is_among_all
from dpwa.policy.link_estimates import LinkEstimate, shares
from dpwa.policy.topology import neighbours_of


class Neighbourhood:
    """Who may ask whom in each round, by the topology of a configuration.

    Nodes keep their positions, whoever comes and goes. Raises UserError if the topology does not
    fit their number.
    """

    def __init__(self, config: Config) -> None:
        self.names = tuple(node.name for node in config.nodes)
        self.index = {name: position for position, name in enumerate(self.names)}
        self._options = config.options_of(config.topology)
        self._topology = topology_of(config.topology, self._options, self.names)
        self._period = self._topology.period(self._options, len(self.names))
        self._known: dict[tuple[int, int], frozenset[str]] = {}

    @property
    def is_everybody(self) -> bool:
        return self._topology.name in EVERYBODY

    @property
    def changes(self) -> bool:
        return self._period > 1

    def of(self, node: int, round_number: int) -> frozenset[str]:
        phase = round_number % self._period
        if (node, phase) not in self._known:
            nodes = len(self.names)
            found = neighbours_of(self._topology, self._options, node, nodes, phase)
            self._known[node, phase] = frozenset(self.names[position] for position in found)
        return self._known[node, phase]

    def ever_of(self, node: int) -> Sequence[str]:
        """Return the names of all that are its neighbours in some round, in order."""
        found = frozenset[str]().union(*(self.of(node, phase) for phase in range(self._period)))
        return sorted(found, key=self.index.__getitem__)


class PeerBook:
    """The peers of one node; `most` is how many connections it may have at once."""

    def __init__(
        self, node: int, neighbourhood: Neighbourhood, most: int, rng: random.Random
    ) -> None:
        self._node = node
        self._neighbourhood = neighbourhood
        self._rng = rng
        names, nodes = neighbourhood.names, len(neighbourhood.names)
        self._has_far = neighbourhood.is_everybody and nodes - 1 > most
        if self._has_far:
            drawn = rng.sample(range(nodes - 1), most)
            known: Sequence[str] = [names[n + (n >= node)] for n in sorted(drawn)]
        elif neighbourhood.is_everybody:
            known = [name for name in names if name != names[node]]
        else:
            known = neighbourhood.ever_of(node)
        self._flow = FlowControl(dict.fromkeys(known, HIGHEST_SCORE))
        self._near: OrderedDict[str, None] = OrderedDict.fromkeys(known if self._has_far else ())
        self._times: dict[str, FetchTimes] = {}
        self._links: dict[str, LinkEstimate] = {}
        self._slowest_s = 0.0  # of all links there ever were
        self._down: dict[str, int] = {}  # and which process of it was
        self.merged = MergedVersions()

    def choose(
        self, now: float, round_number: int, exclude: Collection[str], budget_s: float
    ) -> str | None:
        """Draw whom to ask, for a fetch that may take `budget_s` at the most."""
        if self._has_far and is_among_all(self._rng):
            drawn = self._far(exclude)
            if drawn is not None:
                return drawn
        barred = {*exclude, *self._down}
        if self._neighbourhood.changes:
            among = self._neighbourhood.of(self._node, round_number)
            barred.update(name for name in self._flow.scores if name not in among)
        slow = self._slow(barred, budget_s)
        chosen, self._flow = self._flow.choose(self._rng, now, barred, slow)
        if chosen is not None and self._has_far:
            self._near.move_to_end(chosen)
        return chosen

    def patience_s(self, peer: str, ceiling_s: float) -> float:
        times = self._times.get(peer)
        return ceiling_s if times is None else times.deadline_s(ceiling_s)

    def fetched(self, peer: str, nbytes: float, answered_s: float, streamed_s: float) -> None:
        self.succeeded(peer)
        times = self._times.get(peer, FetchTimes())
        self._times[peer] = times.succeeded(answered_s + streamed_s)
        link = self._links.get(peer, LinkEstimate()).answered(answered_s)
        self._links[peer] = link = link.streamed(round(nbytes), streamed_s)
        self._slowest_s = max(self._slowest_s, link.expected_s or 0.0)

    def succeeded(self, peer: str) -> None:
        if peer in self._flow.scores:
            self._flow = self._flow.succeeded(peer)

    def failed(self, peer: str, now: float, *, is_late: bool) -> None:
        """Penalise a peer that brought nothing; `is_late`: its time was over."""
        if peer in self._flow.scores:
            self._flow = self._flow.failed(peer, now, self._rng)
        if is_late:
            self._times[peer] = self._times.get(peer, FetchTimes()).timed_out()

    def down(self, peer: str, incarnation: int) -> None:
        self._down[peer] = incarnation
        self.merged.forget(peer)

    def look_again(self, incarnations: Sequence[int]) -> None:
        """Note which peers are back, as another process."""
        index = self._neighbourhood.index
        back = [name for name, was in self._down.items() if incarnations[index[name]] != was]
        for name in back:
            del self._down[name]
            self._flow = self._flow.connected(name)

    def _forget(self, peer: str) -> None:
        self._times.pop(peer, None)
        self._links.pop(peer, None)
        self._down.pop(peer, None)
        self.merged.forget(peer)

    def _slow(self, barred: Collection[str], budget_s: float) -> dict[str, float]:
        if self._slowest_s <= min(FLOOR_S, budget_s):
            return {}  # as `shares` would say
        expected = {
            name: seconds
            for name, link in self._links.items()
            if name not in barred and (seconds := link.expected_s) is not None
        }
        return shares(expected, budget_s)

    def _far(self, exclude: Collection[str]) -> str | None:
        """Draw one of all; if it is a new one, it takes the place of who was asked long ago."""
        names = self._neighbourhood.names
        drawn = self._rng.randrange(len(names) - 1)
        name = names[drawn + (drawn >= self._node)]
        if name in exclude:
            return None
        if name not in self._near:
            oldest = self._near.popitem(last=False)[0]
            self._flow = self._flow.removed(oldest).added(name)
            self._forget(oldest)
            self._near[name] = None
        self._near.move_to_end(name)
        return name


Integers = NDArray[np.int64]
EVERYBODY = ("random", "full")


class NeighbourDraws:
    """Draws of peers in the topology of a configuration."""

    def __init__(self, config: Config, nodes: int) -> None:
        self._nodes = nodes
        self._options = config.options_of(config.topology)
        names = [node.name for node in config.nodes]
        self._topology = topology_of(config.topology, self._options, names)
        self._period = self._topology.period(self._options, nodes)
        self._known: dict[int, tuple[Integers, Integers, Integers]] = {}

    def draw(self, round_number: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw a peer for each node that has any; return nodes and peers, both of shape (K,)."""
        nodes = np.arange(self._nodes)
        if self._topology.name in EVERYBODY:
            if self._nodes < 2:
                return nodes[:0], nodes[:0]
            peers = rng.integers(self._nodes - 1, size=self._nodes)
            return nodes, peers + (peers >= nodes)
        first, degrees, flat = self._at(round_number)
        asking = np.flatnonzero(degrees)
        position = (rng.random(self._nodes) * degrees).astype(np.int64)
        return asking, flat[(first + position)[asking]]

    def _at(self, round_number: int) -> tuple[Integers, Integers, Integers]:
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
