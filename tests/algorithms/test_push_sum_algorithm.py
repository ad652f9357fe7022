"""Push-sum by its algorithm: unbiased on directed graphs, where plain pulls are not."""

from __future__ import annotations

import numpy as np
import pytest
from support.swarms import Swarm, SwarmSettings

from dpwa.policy.mixing import pull_matrix, stationary_weights
from dpwa.policy.push_sum import UNIT
from dpwa.policy.topology import EdgeList, edges_topology

SEED = 37
NODES = 6
ROUNDS = 300


def uneven_graph():
    """A directed ring, and chords that let almost everybody hear node 0: it counts too much."""
    pulls = [((i, (i + 1) % NODES)) for i in range(NODES)] + [(i, 0) for i in range(1, NODES - 1)]
    return EdgeList.from_pairs([str(i) for i in range(NODES)], [(str(a), str(b)) for a, b in pulls])


def swarm_on(edges, name, seed, **options):
    rule = edges_topology(edges)
    settings = SwarmSettings(seed, topology=rule, topology_options=rule.options(path="-"))
    return Swarm(name, np.arange(float(NODES))[:, None] ** 2, settings, **options)


def weighted_sum(swarm):
    return sum(worker.mass.held * worker.x for worker in swarm.workers) / UNIT


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("probability", [0.4, 1.0])
def test_all_come_to_the_exact_mean_of_a_directed_graph(seed, probability):
    swarm = swarm_on(uneven_graph(), "push_sum", seed, probability=probability)
    mean, start = swarm.x.mean(), weighted_sum(swarm)
    for _ in range(ROUNDS):
        swarm.round()
        assert sum(worker.mass.held for worker in swarm.workers) == NODES * UNIT
        # Each merge rounds numbers of at most 25 a few times, and errors do not grow.
        assert weighted_sum(swarm) == pytest.approx(start, abs=1e-10)
    print(f"seed {seed}: off by {np.abs(swarm.x - mean).max():.1e}")
    assert swarm.x == pytest.approx(
        np.full_like(swarm.x, mean), abs=1e-6
    )  # of 9.17; p = 0.4 is slow


def test_plain_pulls_agree_on_the_stationary_weights_of_that_graph_instead():
    edges, ends = uneven_graph(), []
    pulls = np.zeros((NODES, NODES), dtype=bool)
    for node, sources in enumerate(edges.pulls):
        pulls[node, list(sources)] = True
    biased = stationary_weights(pull_matrix(pulls, 0.5)) @ (np.arange(NODES) ** 2.0)
    for seed in range(60):
        swarm = swarm_on(edges, "gossip", seed)
        for _ in range(40):
            swarm.round()
        ends.append(swarm.x.mean())
    error, mean = np.std(ends) / np.sqrt(len(ends)), np.mean(np.arange(NODES) ** 2.0)
    print(f"{np.mean(ends):.2f} +- {error:.2f}, expected {biased:.2f}, unbiased {mean:.2f}")
    assert np.mean(ends) == pytest.approx(biased, abs=5 * error)
    assert np.mean(ends) < mean - 5 * error


def test_local_steps_count_by_the_weight_of_who_takes_them():
    swarm = swarm_on(uneven_graph(), "push_sum", SEED, probability=1.0)
    steps = np.random.default_rng(SEED)

    def train(worker):
        taken[worker.name] = steps.normal()
        worker.model.array += taken[worker.name]

    for _ in range(50):
        taken, before = {}, weighted_sum(swarm)
        swarm.round(train)
        gained = sum(worker.mass.weight * taken[worker.name] for worker in swarm.workers)
        assert weighted_sum(swarm) - before == pytest.approx(np.array([gained]), abs=1e-11)
