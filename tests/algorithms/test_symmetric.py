"""Symmetric exchange by its algorithm: the mean is exact, whoever trains meanwhile."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.swarms import Swarm, SwarmSettings

from dpwa.policy.topology import topology

SEED = 31


def dyadic(nodes, seed):
    """Whole numbers below 2^10: thirty halvings and more are exact."""
    rng = random.Random(seed)
    return np.array([[float(rng.randrange(-(2**10), 2**10))] for _ in range(nodes)])


def disagreement(x):
    return float(((x - x.mean()) ** 2).sum())


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_one_exchange_contracts_as_computed(nodes):
    """E V'/V = 1 - 4f(1-f)/(N-1), and the algorithm has f = 1/2."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    swarm, ratios = Swarm("symmetric", np.zeros((nodes, 1)), SwarmSettings(SEED)), []
    for _ in range(1_000):
        for worker, start in zip(swarm.workers, rng.normal(size=(nodes, 1)), strict=True):
            worker.model.array[...] = start
        before = disagreement(swarm.x)
        swarm.publish_snapshots(swarm.workers)
        swarm.ask([swarm.rng.choice(swarm.workers)])
        swarm.merge(swarm.workers)
        ratios.append(disagreement(swarm.x) / before)
    error, rounding = np.std(ratios) / np.sqrt(len(ratios)), 1e-12
    assert np.mean(ratios) == pytest.approx(1 - 1 / (nodes - 1), abs=5 * error + rounding)


@pytest.mark.parametrize("name", ["random", "ring", "exponential"])
@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_the_sum_is_exact_and_local_steps_are_kept_whole(name, nodes):
    rule = topology(name)
    settings = SwarmSettings(SEED, topology=rule, topology_options=rule.options())
    swarm = Swarm("symmetric", dyadic(nodes, SEED), settings)
    steps = random.Random(SEED)

    def train(worker):
        step = float(steps.randrange(-8, 8))
        worker.model.array += step
        total[0] += step

    total = [swarm.x.sum()]
    for _ in range(30):
        swarm.round(train)
        assert swarm.x.sum() == total[0]


def test_a_node_takes_part_in_one_exchange_a_round_and_all_that_can_do():
    swarm = Swarm("symmetric", dyadic(8, SEED), SwarmSettings(SEED))
    for rounds in range(1, 20):
        swarm.round()
        assert [len(worker.merged) for worker in swarm.workers] == [rounds] * 8
    assert all(factor == 0.5 for worker in swarm.workers for _, factor in worker.merged)


def test_both_ends_merge_each_other():
    swarm = Swarm("symmetric", dyadic(7, SEED), SwarmSettings(SEED))
    for _ in range(20):
        before = {worker.name: len(worker.merged) for worker in swarm.workers}
        swarm.round()
        partner = {w.name: w.merged[-1][0] for w in swarm.workers if len(w.merged) > before[w.name]}
        assert len(partner) == 6  # one of seven is left over
        assert all(partner[peer] == name for name, peer in partner.items())


def test_all_come_to_the_mean():
    swarm = Swarm("symmetric", dyadic(8, SEED), SwarmSettings(SEED, fetch_probability=0.5))
    mean = swarm.x.mean()
    for _ in range(100):
        swarm.round()
    assert swarm.x == pytest.approx(np.full_like(swarm.x, mean), abs=1e-9)
