"""The conditions of a run: times of steps, links, reachability, starts and ends of nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from dpwa.node.serving.upload import BYTES_PER_MBIT
from dpwa.sim.churn import NodeChange, node_changes
from dpwa.sim.draws import Purpose, drawn_nodes, generator, normal, share_of_nodes
from dpwa.sim.scenario import RunSpec, Scenario, SiteSpec

JITTER_BLOCK = 64
RETRANSMISSIONS = 50  # maximum for one message

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Period:
    """A period in which some nodes are slower, or cut off."""

    begins_s: float
    ends_s: float
    nodes: Mask

    def is_now(self, now_s: float) -> bool:
        return self.begins_s <= now_s < self.ends_s


class Conditions:
    """The step times, links and failures of a run. They depend on the seed, but not on the engine.

    Nodes are identified by their indices, from 0 on. Nodes of a site have consecutive numbers.
    """

    def __init__(self, spec: RunSpec) -> None:
        scenario = spec.scenario
        network = scenario.network
        self.nodes = scenario.nodes
        # names; one without a name if the scenario has none
        self.sites = tuple(site.name for site in network.sites) or ("",)
        limit = spec.config.max_upload_mbps
        mbps = network.upload_mbps if limit is None else min(limit, network.upload_mbps)
        # of each node, as its link and `max_upload_mbps` allow
        self.upload_bytes_per_s = mbps * BYTES_PER_MBIT
        # whatever `max_upload_mbps` says
        self.link_bytes_per_s = network.upload_mbps * BYTES_PER_MBIT
        self.download_bytes_per_s = network.download_mbps * BYTES_PER_MBIT
        between = network.between_sites_mbps
        # what the nodes of a site send to other sites together; `inf`: no limit
        self.between_sites_bytes_per_s = math.inf if between is None else between * BYTES_PER_MBIT
        self._scenario = scenario
        self._seed = scenario.seed
        # latencies in a site, and between two sites
        self._near_s = network.latency_ms / 1000.0
        self._far_s = network.between_sites_latency_ms / 1000.0
        # position of each node's site in `sites`, shape (N,)
        self.site_of = _sites_of(network.sites, self.nodes)
        self._stragglers = [self._slow(index) for index in range(len(scenario.compute.stragglers))]
        self._jitters: dict[int, tuple[int, list[float]]] = {}
        self._partitions = [
            _Period(
                part.at_s,
                part.at_s + part.for_s,
                self._drawn(Purpose.PARTITION, index, share_of_nodes(self.nodes, part.share)),
            )
            for index, part in enumerate(network.partitions)
        ]
        behind_nat = share_of_nodes(self.nodes, network.unreachable)
        self._is_behind_nat = self._drawn(Purpose.BEHIND_NAT, 0, behind_nat)
        spread = generator(self._seed, Purpose.SPEED).normal(size=self.nodes)
        compute = scenario.compute
        self._usual_s: Floats = compute.step_ms / 1000.0 * np.exp(compute.spread * spread)
        if compute.steps_ms:
            self._usual_s = np.resize(np.array(compute.steps_ms), self.nodes) / 1000.0
        # the median of all nodes
        self.usual_step_s = median(compute.steps_ms or [compute.step_ms]) / 1000.0
        # mean of what a round costs a node beside its step
        self.own_work_s = _own_work_s(scenario, spec.config.fetch_probability)

    def step_s(self, node: int, update: int, now_s: float) -> float:
        """Return the seconds of a node's step. The step has this number, and begins now."""
        taken = float(self._usual_s[node])
        if self._scenario.compute.jitter:
            taken *= self._jitter(node, update)
        for period, slower in self._stragglers:
            if period.is_now(now_s) and period.nodes[node]:
                taken *= slower
        return taken

    def steps_s(self, nodes: NDArray[np.int64], updates: NDArray[np.int64], now_s: float) -> Floats:
        """Return the step times of several nodes in seconds, shape (K,)."""
        taken = self._usual_s[nodes]
        jitter = self._scenario.compute.jitter
        if jitter:
            taken = taken * np.exp(jitter * normal(self._seed, Purpose.STEP, nodes, updates))
        for period, slower in self._stragglers:
            if period.is_now(now_s):
                taken = np.where(period.nodes[nodes], slower * taken, taken)
        return taken

    def site(self, node: int) -> int:
        return int(self.site_of[node])

    def latency_s(self, a: int, b: int) -> float:
        """Return the latency of a message in one direction, without jitter."""
        return self._near_s if self.site_of[a] == self.site_of[b] else self._far_s

    @property
    def longest_latency_s(self) -> float:
        """The maximum latency of a message between any two nodes, without jitter."""
        return max(self._near_s, self._far_s) if len(self.sites) > 1 else self._near_s

    def latencies_s(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> Floats:
        """Return the latency in seconds between nodes `a[k]` and `b[k]` for each k, shape (K,)."""
        return np.where(self.site_of[a] == self.site_of[b], self._near_s, self._far_s)

    def delay_s(self, a: int, b: int, rng: random.Random) -> float:
        """Return a random message delay: latency, jitter, and a round trip per lost packet."""
        network, latency_s = self._scenario.network, self.latency_s(a, b)
        taken_s = latency_s
        if network.jitter_ms:
            taken_s += rng.uniform(0.0, network.jitter_ms / 1000.0)
        for _ in range(RETRANSMISSIONS if network.loss else 0):
            if rng.random() >= network.loss:
                break
            taken_s += 2 * latency_s
        return taken_s

    def mean_delay_s(self, latency_s: Floats) -> Floats:
        """Return the mean message delay for each latency in seconds, shape (K,)."""
        network = self._scenario.network
        lost = network.loss / (1.0 - network.loss)
        return latency_s * (1.0 + 2.0 * lost) + network.jitter_ms / 2000.0

    def is_behind_nat(self, node: int) -> bool:
        """Return whether a node is behind NAT, so that no other node can connect to the node."""
        return bool(self._is_behind_nat[node])

    def is_cut(self, a: int, b: int, now_s: float) -> bool:
        return any(p.is_now(now_s) and p.nodes[a] != p.nodes[b] for p in self._partitions)

    def partition_changes(self) -> tuple[tuple[float, NDArray[np.int64] | None], ...]:
        """Return start times of partitions with the isolated nodes, and end times with `None`."""
        begins = [(p.begins_s, np.flatnonzero(p.nodes)) for p in self._partitions]
        ends = [(p.ends_s, None) for p in self._partitions]
        return tuple(sorted([*begins, *ends], key=lambda change: change[0]))

    def events(self) -> Iterator[NodeChange]:
        """Yield each start, kill, return and departure of a node, in order of time.

        Raises:
            ConfigError: the trace of the scenario cannot be read, or has mistakes.
        """
        return node_changes(self._scenario)

    @property
    def is_calm(self) -> bool:
        """Whether all nodes start together, never leave, and can always reach each other."""
        churn = self._scenario.churn
        comes_and_goes = churn.start_spread_s or churn.kill_every_s or churn.lost or churn.trace
        return not comes_and_goes and not self._partitions and not self._is_behind_nat.any()

    def _jitter(self, node: int, update: int) -> float:
        """Return the random factor of a node's step time at `update`. Later factors are cached."""
        block, within = divmod(update, JITTER_BLOCK)
        known = self._jitters.get(node)
        if known is None or known[0] != block:
            updates = np.arange(block * JITTER_BLOCK, (block + 1) * JITTER_BLOCK)
            sigma = self._scenario.compute.jitter
            factors = np.exp(sigma * normal(self._seed, Purpose.STEP, node, updates))
            known = self._jitters[node] = block, factors.tolist()
        return known[1][within]

    def _slow(self, index: int) -> tuple[_Period, float]:
        spec = self._scenario.compute.stragglers[index]
        count = spec.nodes or share_of_nodes(self.nodes, spec.share)
        ends_s = math.inf if spec.for_s is None else spec.from_s + spec.for_s
        nodes = self._drawn(Purpose.STRAGGLERS, index, count)
        return _Period(spec.from_s, ends_s, nodes), spec.slower

    def _drawn(self, purpose: Purpose, index: int, count: int) -> Mask:
        return drawn_nodes(generator(self._seed, purpose, index), self.nodes, count)


def _own_work_s(scenario: Scenario, merges: float) -> float:
    """Return a node's mean seconds in a round with `merges` merges, without its training step."""
    costs = scenario.costs
    per_mb_ms = costs.publish_ms_per_mb + merges * costs.merge_ms_per_mb
    return (costs.round_ms + (scenario.model_mb or 0.0) * per_mb_ms) / 1000.0


def _sites_of(sites: tuple[SiteSpec, ...], nodes: int) -> NDArray[np.int64]:
    """Divide the nodes between the sites by their shares, as consecutive ranges."""
    if not sites:
        return np.zeros(nodes, dtype=np.int64)
    shares = np.cumsum([site.share for site in sites])
    middle = (np.arange(nodes) + 0.5) / nodes
    return np.searchsorted(shares / shares[-1], middle).astype(np.int64)
