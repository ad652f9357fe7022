"""Simulate lockstep gossip of all nodes at once, as x += f * (x[peers] - x) on one array.

This is exact for `algorithm: gossip` if all nodes are always present, can reach each other, and no
fetch times out. Then all peers keep the same score, so flow control picks each with the same
probability. The nodes' own interpolation rules compute the factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpwa.config import Config
from dpwa.config.graphs import topology_of
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.policy.topology import neighbours_of
from dpwa.sim.conditions import Conditions
from dpwa.sim.draws import uniform
from dpwa.sim.rules.wire_sizes import Links, WireSizes
from dpwa.sim.samples import Moment, NodeFigures, RunOutcome, RunRecorder, Watch
from dpwa.sim.scenario import RunSpec, node_name
from dpwa.sim.tasks import make_task
from dpwa.types import TrainingProgress

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NAME = "arrays"
MAX_READERS = 16  # of one node at once; more are extremely unlikely
_ASKS, _PEERS = 101, 102  # purposes of random numbers, see `dpwa.sim.draws`


class ArrayRounds:
    """All nodes of a run as arrays, with parameters `x`, shape (N, D)."""

    def __init__(self, spec: RunSpec) -> None:
        config, nodes = spec.config, spec.scenario.nodes
        self.time_s = 0.0
        self.rounds = 0
        self._spec, self._config = spec, config
        self._seed = spec.scenario.seed
        self._conditions = Conditions(spec)
        self._task = make_task(spec)
        self.x = self._task.starts()
        self._sizes = WireSizes.from_spec(spec, self._task.dimension)
        self._links = Links(self._conditions, self._sizes)
        self._draws = NeighbourDraws(config, nodes)
        self._rng = np.random.default_rng([self._seed, _PEERS])
        self._rule = interpolation(config.interpolation)
        self._rule_options = config.options_of(config.interpolation)
        is_constant = self._rule.name == "constant" and config.divergence_threshold == 0.0
        self._constant = float(getattr(self._rule_options, "value")) if is_constant else None  # noqa: B009
        self._all = np.arange(nodes)
        self._clocks = np.zeros(nodes)
        self._losses: Floats | None = None
        self._merges, self._asked, self._served = (np.zeros(nodes, np.int64) for _ in range(3))
        self._trained_s, self._waited_s = np.zeros(nodes), np.zeros(nodes)

    @property
    def fits(self) -> bool:
        """Whether arrays suffice: the run is plain `gossip` in lockstep without failures."""
        spec, config = self._spec, self._config
        is_plain = config.algorithm == "gossip" and not self._rule.asks_leader
        longest_s = self._links.longest_s(min(MAX_READERS, spec.scenario.nodes))
        are_in_time = longest_s <= config.timeout_ms / 1000
        is_calm = self._conditions.is_calm and not config.is_open
        is_usual = config.robust == "none" and not config.quarantine_s and not config.links
        return is_plain and is_usual and is_calm and are_in_time

    def simulate(self, watch: Watch) -> RunOutcome:
        """Simulate the run. `watch` gets each sample, and returns whether to continue."""
        scenario = self._spec.scenario
        recorder = RunRecorder(self._spec, self._task, self.x, watch)
        rounds, seconds = scenario.rounds or math.inf, scenario.seconds or math.inf
        samples = recorder.take_last_sample(self.take_rounds(recorder, rounds, seconds))
        return RunOutcome(samples, self.figures(), (), NAME, recorder.was_stopped)

    def take_rounds(self, recorder: RunRecorder, rounds: float, seconds: float) -> Moment:
        """Simulate rounds until `rounds` or `seconds` are reached, or the recorder ends the run."""
        while recorder.observe(self._moment()) and self.rounds < rounds and self.time_s < seconds:
            self._round(seconds)
        return self._moment()

    def figures(self) -> tuple[NodeFigures, ...]:
        sent = self._asked * self._sizes.request + self._served * self._sizes.answer
        received = self._asked * self._sizes.answer + self._served * self._sizes.request
        return tuple(
            NodeFigures(
                name=node_name(node),
                updates=self.rounds,
                merges=int(self._merges[node]),
                bytes_sent=round(float(sent[node])),
                bytes_received=round(float(received[node])),
                trained_s=float(self._trained_s[node]),
                waited_s=float(self._waited_s[node]),
                served=int(self._served[node]),
            )
            for node in range(len(self.x))
        )

    def _moment(self) -> Moment:
        losses, asked = self._losses, float(self._asked.mean())
        return Moment(
            time_s=self.time_s,
            round=float(self.rounds),
            x=self.x,
            loss=None if losses is None else float(losses.mean()),
            bytes_per_node=asked * (self._sizes.request + self._sizes.answer),
        )

    def _round(self, ends_s: float) -> None:
        """Simulate one round of all nodes: publish, fetch, train and merge, if time remains."""
        readers, peers = self._asking()
        fetch_s = self._links.fetch_s(readers, peers)
        if not self._pass_time(readers, fetch_s, ends_s):
            return
        published, before = self.x.copy(), self._losses
        self._clocks += 1.0
        clocks = self._clocks.copy()
        losses = self._task.step(self.x, self._all)
        self._losses = None if losses is None else losses.copy()
        self._asked[readers] += 1
        self._served += np.bincount(peers, minlength=len(self.x))
        in_time = fetch_s <= self._config.timeout_ms / 1000
        if not in_time.all():
            readers, peers = readers[in_time], peers[in_time]
        self._merge(readers, peers, published, clocks, before)
        self.rounds += 1

    def _asking(self) -> tuple[Integers, Integers]:
        nodes, peers = self._draws.draw(self.rounds, self._rng)
        probability = self._config.fetch_probability
        if probability < 1.0:
            asks = uniform(self._seed, _ASKS, nodes, self.rounds) < probability
            nodes, peers = nodes[asks], peers[asks]
        return nodes, peers

    def _pass_time(self, readers: Integers, fetch_s: Floats, ends_s: float) -> bool:
        """Add the time of a round, and return whether the round ends before the run does."""
        step_s = self._conditions.steps_s(self._all, np.full(len(self.x), self.rounds), self.time_s)
        step_s = step_s + self._conditions.own_work_s
        taken_s = step_s.copy()
        taken_s[readers] = np.maximum(
            taken_s[readers], np.minimum(fetch_s, self._config.timeout_ms / 1000)
        )
        round_s = float(taken_s.max())
        if self.time_s + round_s > ends_s:
            self.time_s = ends_s
            return False
        self._trained_s += step_s
        self._waited_s += round_s - step_s
        self.time_s += round_s
        return True

    def _merge(
        self,
        readers: Integers,
        peers: Integers,
        published: Floats,
        clocks: Floats,
        before: Floats | None,
    ) -> None:
        factors = self._factors(readers, peers, clocks, before)
        part = part_of(self._config.fraction, self.rounds, self.x.shape[1])
        own = published if self._config.merge == "delta" else self.x
        column = factors if isinstance(factors, float) else factors[:, None]
        # No node reads `x` of another node, so it is changed in place.
        self.x[readers, part] += column * (published[peers, part] - own[readers, part])
        share = (part.stop - part.start) / self.x.shape[1]
        moved = factors * share
        self._clocks[readers] = mixed_clock(clocks[readers], clocks[peers], moved)  # type: ignore[arg-type]
        self._merges[readers] += np.asarray(factors) > 0.0

    def _factors(
        self, readers: Integers, peers: Integers, clocks: Floats, before: Floats | None
    ) -> float | Floats:
        if self._constant is not None:
            return self._constant
        own_losses = None if self._losses is None else self._losses.tolist()
        peer_losses = None if before is None else before.tolist()
        at = clocks.tolist()
        return np.array(
            [
                merge_factor(
                    self._rule,
                    self._rule_options,
                    TrainingProgress(at[a], None if own_losses is None else own_losses[a]),
                    TrainingProgress(at[b], None if peer_losses is None else peer_losses[b]),
                    self._config.divergence_threshold,
                )
                for a, b in zip(readers.tolist(), peers.tolist(), strict=True)
            ]
        )


def part_of(fraction: float, turn: int, dimension: int) -> slice:
    """Return the slice of parameters that a round fetches. Rounds fetch the slices in turn."""
    parts = min(dimension, math.ceil(1 / fraction))
    index = turn % parts
    return slice(dimension * index // parts, dimension * (index + 1) // parts)


EVERYBODY = ("random", "full")


class NeighbourDraws:
    """Random picks of peers in the topology of a configuration."""

    def __init__(self, config: Config, nodes: int) -> None:
        self._nodes = nodes
        self._options = config.options_of(config.topology)
        names = [node.name for node in config.nodes]
        self._topology = topology_of(config.topology, self._options, names)
        self._period = self._topology.period(self._options, nodes)
        self._known: dict[int, tuple[Integers, Integers, Integers]] = {}

    def draw(self, round_number: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Pick a peer for each node with neighbours. Return nodes and peers, both of shape (K,)."""
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
        """Return offsets and counts into a flat list of all nodes' neighbours, and this list."""
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
