"""Measure the mean on which nodes agree in directed graphs, with and without push-sum weights."""

from __future__ import annotations

import random

import numpy as np
from claims import Claim, Paper, main, verdict
from swarm import Swarm, SwarmSettings

from dpwa.policy.mixing import pull_matrix, stationary_weights
from dpwa.policy.topology import EdgeList, edges_topology, topology

LR = 0.01
EXACT = 1e-9


def reproduce(seed: int, quick: bool) -> list[Claim]:
    nodes = 8 if quick else 16
    edges = directed(nodes, seed)
    starts = np.random.default_rng(seed).normal(size=(nodes, 4))
    mean = starts.mean(axis=0)
    spread = float(np.linalg.norm(starts - mean) / nodes**0.5)
    return [
        averaging(edges, starts, seed, 300 if quick else 2000),
        plain_pulls(edges, starts, spread, seed, 10 if quick else 100),
        training(edges, starts, spread, seed, quick),
        one_peer(nodes, starts, spread, seed),
    ]


def directed(nodes: int, seed: int) -> EdgeList:
    """Return a directed ring with chords. Many chords lead from node 0, so node 0 counts more."""
    rng, names = random.Random(seed), [f"n{i}" for i in range(nodes)]
    pulls = [(i, (i + 1) % nodes) for i in range(nodes)]
    pulls += [(i, 0) for i in range(1, nodes, 2)]
    pulls += [tuple(rng.sample(range(nodes), 2)) for _ in range(nodes)]
    return EdgeList.from_pairs(names, [(names[one], names[other]) for one, other in pulls])


def swarm_on(edges: EdgeList, name: str, starts: np.ndarray, seed: int, **options: float) -> Swarm:
    graph = edges_topology(edges)
    settings = SwarmSettings(seed, graph, graph.options(path="-"), delta=True)
    return Swarm(name, starts, settings, **options)


def averaging(edges: EdgeList, starts: np.ndarray, seed: int, rounds: int) -> Claim:
    swarm = swarm_on(edges, "push_sum", starts, seed, probability=1.0)
    for _ in range(rounds):
        swarm.round()
    off = np.abs(swarm.x - starts.mean(axis=0)).max()
    weights = [worker.mass.weight for worker in swarm.workers]
    return Claim(
        "With push-sum weights all nodes reach the exact mean on any strongly connected graph",
        f"{len(starts)} nodes, {rounds} rounds: the error is at most {off:.0e}. The last weights "
        f"are from {min(weights):.2g} to {max(weights):.2g}, and their sum is {sum(weights):g}",
        verdict(off < EXACT),
    )


def plain_pulls(edges: EdgeList, starts: np.ndarray, spread: float, seed: int, runs: int) -> Claim:
    """Measure the mean that nodes reach by pulls without weights, over many random runs."""
    ends = []
    for run in range(runs):
        swarm = swarm_on(edges, "gossip", starts, seed + run)
        for _ in range(80):
            swarm.round()
        ends.append(swarm.x.mean(axis=0))
    pulls = np.zeros((len(starts), len(starts)), dtype=bool)
    for node, sources in enumerate(edges.pulls):
        pulls[node, list(sources)] = True
    weights = stationary_weights(pull_matrix(pulls, 0.5))
    mean, found = starts.mean(axis=0), np.mean(ends, axis=0)
    error = float(np.linalg.norm(np.std(ends, axis=0)) / runs**0.5)
    bias = float(np.linalg.norm(found - mean))
    off = float(np.linalg.norm(found - weights @ starts))
    return Claim(
        "Without the weights, nodes agree on a different mean, in which nodes with many readers "
        "count more",
        f"{runs} runs end {bias / spread:.2f} +- {error / spread:.2f} from the mean, in units of "
        f"the nodes' deviation, and {off / spread:.2f} from the mean with stationary weights "
        f"({weights.min():.3f} to {weights.max():.3f}, equal weights are {1 / len(starts):.3f})",
        verdict(bias > 3 * error, off < 3 * error),
    )


def training(edges: EdgeList, starts: np.ndarray, spread: float, seed: int, quick: bool) -> Claim:
    """Train nodes with different optima, with plain steps and with steps divided by the weight."""
    rounds, mean = 600 if quick else 3000, starts.mean(axis=0)
    plain, divided, pulled = (
        float(np.linalg.norm(trained(edges, *how, starts, seed, rounds) - mean)) / spread
        for how in (("push_sum", False), ("push_sum", True), ("gossip", False))
    )
    near = 0.05
    return Claim(
        "So training on a directed graph ends at the optimum of the mean loss",
        f"`push_sum` ends {plain:.2f} from this optimum, and `gossip` {pulled:.2f}, in units of "
        "the deviation of the nodes' optima. With steps divided by the node's weight, before "
        f"`update_send`, `push_sum` ends {divided:.2f} from the optimum",
        verdict(plain < near, divided < near),
        "SGP adds gradients to w x, so all steps count equally. dpwa's push_sum is GoSGD, in "
        "which a step counts by the weight of its node. If all nodes have equally many readers, "
        "both have the same mean",
    )


def trained(
    edges: EdgeList, name: str, is_divided: bool, optima: np.ndarray, seed: int, rounds: int
) -> np.ndarray:
    """Train node i on |x - b_i|^2 / 2. Return the mean over all nodes and the last rounds."""
    options = {"probability": 1.0} if name == "push_sum" else {}
    swarm = swarm_on(edges, name, np.zeros_like(optima), seed, **options)
    ends = []
    for count in range(rounds):
        for worker in swarm.workers:
            lr = min(LR / worker.mass.weight, 0.5) if is_divided else LR
            worker.model.array -= lr * (worker.x - optima[worker.number])
        swarm.round()
        if count >= rounds // 3:
            ends.append(swarm.x.mean(axis=0))
    return np.mean(ends, axis=0)


def one_peer(nodes: int, starts: np.ndarray, spread: float, seed: int) -> Claim:
    graph = topology("one_peer_exponential")
    settings = SwarmSettings(seed, graph, graph.options())
    swarm = Swarm("push_sum", starts, settings, probability=1.0)
    rounds = graph.period(graph.options(), nodes)
    for _ in range(rounds):
        swarm.round()
    weights = [worker.mass.weight for worker in swarm.workers]
    off = float(np.abs(swarm.x - starts.mean(axis=0)).max()) / spread
    return Claim(
        "On the one-peer exponential graph, with which SGP trains, all weights stay 1",
        f"weights from {min(weights):g} to {max(weights):g}. After {rounds} rounds, the error is "
        f"{off:.0e}",
        verdict(min(weights) == max(weights) == 1.0, off < EXACT),
    )


PAPER = Paper(
    "Stochastic Gradient Push for Distributed Deep Learning (Assran et al., 2019)",
    "arXiv:1811.10792",
    "The runs use `push_sum` with probability 1 and `gossip` with f = 0.5 in lockstep. The "
    "graph is a directed ring of 16 nodes with chords, and many chords lead to one node.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
