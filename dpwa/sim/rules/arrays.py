"""Plain pulls in lockstep, for all nodes at once: x += f * (x[peers] - x) on one array.

For `algorithm: gossip` where all nodes are there at all times and reach each other, and no fetch
takes too long; so nothing fails, and flow control has nothing to learn. The factors are those of
the very rules that nodes use. Else `dpwa.sim.rules.lockstep` takes the same rounds node by node.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.sim.conditions import Conditions
from dpwa.sim.draws import uniform
from dpwa.sim.rules.peer_book import NeighbourDraws
from dpwa.sim.rules.wire_sizes import Links, WireSizes
from dpwa.sim.samples import Moment, NodeFigures, RunRecorder
from dpwa.sim.scenario import RunSpec, node_name
from dpwa.sim.tasks import TrainingTask
from dpwa.types import TrainingProgress

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_READERS = 16  # at one node: more come together once in very many rounds
_ASKS, _PEERS = 101, 102  # purposes of chance


def fits(spec: RunSpec, conditions: Conditions, sizes: WireSizes) -> bool:
    """Tell whether a run is one of plain pulls in which nothing fails."""
    config = spec.config
    is_plain = config.algorithm == "gossip"
    is_plain = is_plain and not interpolation(config.interpolation).asks_leader
    longest_s = Links(conditions, sizes).longest_s(min(MOST_READERS, conditions.nodes))
    return is_plain and conditions.is_calm and longest_s <= config.timeout_ms / 1000


class ArrayRounds:
    """All nodes of a run, as arrays; they begin at `x`, shape (N, D)."""

    def __init__(
        self,
        spec: RunSpec,
        conditions: Conditions,
        task: TrainingTask,
        sizes: WireSizes,
        x: Floats,
    ) -> None:
        config, nodes = spec.config, len(x)
        self.x = x
        self.time_s = 0.0
        self.rounds = 0
        self._config = config
        self._seed = spec.scenario.seed
        self._conditions = conditions
        self._task = task
        self._sizes = sizes
        self._links = Links(conditions, sizes)
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

    def run(self, recorder: RunRecorder, rounds: float, seconds: float) -> Moment:
        """Take rounds until `rounds` or `seconds` are over, or the recorder has enough."""
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
        """Publish, ask, train and merge, all nodes together; nothing if there is no time for it."""
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
        """Let a round pass; return whether it ends in time."""
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
        # Nobody reads `x` of another node, so it is changed in place.
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
    """Return which parameters a fetch brings: with a fraction, consecutive parts take turns."""
    parts = min(dimension, math.ceil(1 / fraction))
    index = turn % parts
    return slice(dimension * index // parts, dimension * (index + 1) // parts)
