"""Count the rounds of Moshpit averaging until nodes agree, and compare with dpwa's algorithms.

dpwa has no all-reduce in changing groups, so this module implements Moshpit's rule as a reference.
dpwa has gossip, and `one_peer_exponential`, which is a grid with two places in each dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from claims import Claim, Paper, listed, main, verdict
from swarm import Swarm, SwarmSettings

from dpwa.policy.topology import topology

TARGET = 1e-9  # for V / V0
EXACT = 1e-24
MAX_ROUNDS = 400
FAILURES = (0.0, 0.001, 0.005, 0.01)  # share of the nodes that fail in a round


def reproduce(seed: int, quick: bool) -> list[Claim]:
    grids = [(8, 2), (4, 3), (2, 6)] if quick else [(32, 2), (10, 3), (4, 5), (2, 10)]
    size = 8 if quick else 32
    return [
        full_grids(grids, seed),
        random_groups(size, seed, 5 if quick else 40),
        failures(size, seed, FAILURES[::3] if quick else FAILURES),
        beside_dpwa(size, seed, FAILURES[::3]),
    ]


class Groups:
    """Nodes that take the mean of their group in each round.

    A node's key has d-1 numbers below M. Nodes with equal keys are a group, with different places.
    After a round, a key loses its first number, and its last number is the node's place.
    """

    def __init__(self, nodes: int, places: int, dimensions: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.places = places
        self.x = self._rng.normal(size=nodes)
        cells = self._rng.permutation(places**dimensions)[:nodes]
        self._keys = np.stack(
            [cells // places**power % places for power in range(dimensions - 1)], axis=1
        )

    def round(self, failing: float) -> None:
        up = np.flatnonzero(self._rng.random(len(self.x)) >= failing)
        _, groups = np.unique(self._keys[up], axis=0, return_inverse=True)
        groups = groups.ravel()
        self.x[up] = (np.bincount(groups, self.x[up]) / np.bincount(groups))[groups]
        order = np.lexsort((self._rng.random(len(up)), groups))  # shuffled within each group
        first = np.searchsorted(groups[order], groups[order])
        places = np.empty(len(up), dtype=int)
        places[order] = (np.arange(len(up)) - first) % self.places
        self._keys[up] = np.column_stack([self._keys[up, 1:], places])


class RandomGroups:
    """Nodes that form random groups in each round, and take the mean of their group."""

    def __init__(self, nodes: int, places: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.x = self._rng.normal(size=nodes)
        self._groups = np.arange(nodes) // places

    def round(self, failing: float) -> None:
        order = self._rng.permutation(len(self.x))
        up = self._rng.random(len(self.x)) >= failing
        members, groups = order[up], self._groups[up]
        sums = np.bincount(groups, self.x[members])
        self.x[members] = (sums / np.maximum(np.bincount(groups), 1))[groups]


class Gossip:
    def __init__(self, nodes: int, name: str, graph: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rule = topology(graph)
        options = {"probability": 1.0} if name == "push_sum" else {}
        starts = rng.normal(size=(nodes, 1))
        self._rng = rng
        self._swarm = Swarm(name, starts, SwarmSettings(seed, rule, rule.options()), **options)

    @property
    def x(self) -> np.ndarray:
        return self._swarm.x[:, 0]

    def round(self, failing: float) -> None:
        """Do one round. Failing nodes neither send nor receive snapshots."""
        swarm, workers = self._swarm, self._swarm.workers
        lost = {worker.name for worker in workers if self._rng.random() < failing}
        named = {worker.name: worker for worker in workers}
        swarm.publish_snapshots(workers)
        swarm.ask([worker for worker in workers if worker.name not in lost])
        for worker in workers if lost else ():
            for arrival in list(worker.inbox):
                if not lost.isdisjoint((worker.name, arrival.peer)):
                    worker.inbox.remove(arrival)
                    if arrival.units:
                        named[arrival.peer].mass.received(arrival.units)  # give the mass back
        swarm.merge(workers)


Crowd = Groups | RandomGroups | Gossip


def disagreement(x: np.ndarray) -> float:
    return float(((x - x.mean()) ** 2).sum())


def rounds_to_target(nodes: Crowd, failing: float) -> int:
    """Return the number of rounds until V is at most `TARGET` times V0, up to `MAX_ROUNDS`."""
    goal = TARGET * disagreement(nodes.x)
    for count in range(1, MAX_ROUNDS + 1):
        nodes.round(failing)
        if disagreement(nodes.x) <= goal:
            return count
    return MAX_ROUNDS


def full_grids(grids: list[tuple[int, int]], seed: int) -> Claim:
    left = []
    for places, dimensions in grids:
        nodes = Groups(places**dimensions, places, dimensions, seed)
        before = disagreement(nodes.x)
        for _ in range(dimensions):
            nodes.round(0.0)
        left.append(disagreement(nodes.x) / before)
    one_peer = topology("one_peer_exponential")
    power = grids[-1][1]
    gossip = Gossip(2**power, "gossip", one_peer.name, seed)
    before = disagreement(gossip.x)
    for _ in range(power):
        gossip.round(0.0)
    left.append(disagreement(gossip.x) / before)
    shapes = ", ".join(f"{places}^{dimensions}" for places, dimensions in grids)
    return Claim(
        "With N = M^d nodes and no failures the mean is exact after d rounds",
        f"in grids of {shapes}, at most {max(left):.0e} of V is left. dpwa's "
        f"`one_peer_exponential` with 2^{power} nodes after {power} rounds is included",
        verdict(max(left) < EXACT),
    )


def random_groups(places: int, seed: int, runs: int) -> Claim:
    nodes, ratios = places**2, []
    for run in range(runs):
        crowd = RandomGroups(nodes, places, seed + run)
        before = disagreement(crowd.x)
        crowd.round(0.0)
        ratios.append(disagreement(crowd.x) / before)
    groups = nodes // places
    formula = (groups - 1) / nodes + groups / nodes**2
    mean, error = float(np.mean(ratios)), float(np.std(ratios) / runs**0.5)
    return Claim(
        "With r random groups, a round leaves (r-1)/N + r/N^2 of V on average",
        f"N = {nodes}, r = {groups}: {mean:.4f} +- {error:.4f}. The formula gives {formula:.4f}",
        verdict(abs(mean - formula) <= 3 * error),
        f"the exact value is (r-1)/(N-1), here {(groups - 1) / (nodes - 1):.4f}",
    )


def failures(places: int, seed: int, shares: tuple[float, ...]) -> Claim:
    nodes = places**2
    sizes = (nodes, 3 * nodes // 4)
    counts = {
        size: [mean_rounds(lambda s, n=size: Groups(n, places, 2, s), p, seed) for p in shares]
        for size in sizes
    }
    all_counts = [count for found in counts.values() for count in found]
    rows = [f"N = {size}: {listed(found)}" for size, found in counts.items()]
    return Claim(
        "Failing nodes and empty places cost a few more rounds, but not the mean",
        f"rounds to V = 1e-9 V0 in a {places}x{places} grid, with {listed(shares)} of the nodes "
        f"failing in each round: {'; '.join(rows)}",
        verdict(max(all_counts) <= 15),
    )


def beside_dpwa(places: int, seed: int, shares: tuple[float, ...]) -> Claim:
    nodes = places**2
    per_round = 2 * (places - 1) / places  # models that a node sends in an all-reduce of M nodes
    ways = {
        "Moshpit": (lambda s: Groups(nodes, places, 2, s), per_round),
        "random groups": (lambda s: RandomGroups(nodes, places, s), per_round),
        "`one_peer_exponential`": (lambda s: Gossip(nodes, "gossip", "one_peer_exponential", s), 1),
        "`symmetric`": (lambda s: Gossip(nodes, "symmetric", "random", s), 1),
        "`gossip`": (lambda s: Gossip(nodes, "gossip", "random", s), 1),
        "`push_sum`": (lambda s: Gossip(nodes, "push_sum", "random", s), 1),
    }
    counts = {
        name: [mean_rounds(make, share, seed, runs=1) for share in shares]
        for name, (make, _) in ways.items()
    }
    sent = {name: counts[name][0] * cost for name, (_, cost) in ways.items()}
    rows = [
        f"{name} {' and '.join(f'{count:g}' for count in found)} ({sent[name]:.3g})"
        for name, found in counts.items()
    ]
    in_groups = np.max([counts["Moshpit"], counts["random groups"]], axis=0)
    drawn = np.min([counts["`symmetric`"], counts["`gossip`"], counts["`push_sum`"]], axis=0)
    shares_text = " and ".join(f"{share:g}" for share in shares)
    return Claim(
        "Moshpit needs far fewer rounds than gossip and push-sum, with and without failures",
        f"N = {nodes}, rounds to V = 1e-9 V0 with {shares_text} failing (models that a node sends "
        f"without failures): {', '.join(rows)}",
        verdict(*(2 * grouped < single for grouped, single in zip(in_groups, drawn, strict=True))),
        "a round of Moshpit is an all-reduce of a group, which waits for its slowest node. In "
        "dpwa, `one_peer_exponential` with synchronous rounds comes closest",
    )


def mean_rounds(make: Callable[[int], Crowd], share: float, seed: int, runs: int = 5) -> float:
    found = [rounds_to_target(make(seed + run), share) for run in range(runs)]
    return float(np.mean(found))


PAPER = Paper(
    "Moshpit SGD: Communication-Efficient Decentralized Training (Ryabinin et al., 2021)",
    "arXiv:2103.03239",
    "The runs compare Moshpit's rule with `gossip` with f = 0.5, `symmetric`, and `push_sum` "
    "with probability 1, in lockstep. V is the variance of the nodes' values.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
