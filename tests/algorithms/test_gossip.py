"""Gossip by its algorithm: what pulls do to parameters, to their mean, and to local steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.swarms import Swarm, SwarmSettings

from dpwa.adapters.tensor_values import TensorValues

SEED = 29
SEEDS = st.integers(0, 2**32 - 1)


def starts(nodes, seed, size=3):
    return np.random.default_rng(seed).normal(size=(nodes, size))


def disagreement(x):
    return float(((x - x.mean(axis=0)) ** 2).sum())


# Local steps


@given(st.integers(2, 8), st.floats(0.0, 1.0), SEEDS)
@settings(max_examples=30)
def test_a_delta_is_interpolation_when_no_step_is_taken_meanwhile(nodes, f, seed):
    x = starts(nodes, seed)
    plain, delta = (
        Swarm("gossip", x, SwarmSettings(seed, factor=f, delta=d)) for d in (False, True)
    )
    for _ in range(10):
        plain.round()
        delta.round()
    assert [w.merged for w in plain.workers] == [w.merged for w in delta.workers]
    assert delta.x == pytest.approx(plain.x, abs=1e-13)  # ten roundings of numbers below 6


@pytest.mark.parametrize("f", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("delta", [False, True])
def test_interpolation_scales_a_step_taken_meanwhile_and_a_delta_keeps_it(f, delta):
    swarm = Swarm("gossip", np.zeros((6, 3)), SwarmSettings(SEED, factor=f, delta=delta))

    def train(worker):
        worker.model.array += 1.0

    for rounds in range(1, 20):
        swarm.round(train)
        kept = 1.0 if delta else 1.0 - f
        assert swarm.x.mean() == pytest.approx(rounds * kept, abs=1e-13)


@pytest.mark.parametrize("name", ["gossip", "push_sum"])
def test_the_probability_is_how_often_a_node_asks(name):
    print(f"seed {SEED}")
    p, nodes, rounds = 0.3, 10, 400
    settings = SwarmSettings(SEED, fetch_probability=p if name == "gossip" else 1.0)
    swarm = Swarm(
        name, starts(nodes, SEED), settings, **({} if name == "gossip" else {"probability": p})
    )
    for _ in range(rounds):
        swarm.round()
    asked = sum(len(worker.asked) for worker in swarm.workers)
    deviation = math.sqrt(nodes * rounds * p * (1 - p))
    assert asked == pytest.approx(nodes * rounds * p, abs=5 * deviation)


# Whom


def test_with_the_rule_leader_all_pull_from_the_best_which_stays_where_it_is():
    swarm = Swarm("gossip", starts(5, SEED), SwarmSettings(SEED, interpolation="leader"))
    losses = [5.0, 4.0, 1.0, 3.0, 2.0]
    for worker, loss in zip(swarm.workers, losses, strict=True):
        worker.loss = loss
    before = swarm.x
    swarm.round()
    first = [worker.asked[0].peer for worker in swarm.workers]
    assert first == ["w2", "w2", None, "w2", "w2"]  # the leader itself asks anybody
    moved = before + 0.1 * (before[2] - before)
    assert swarm.x == pytest.approx(moved, abs=1e-15)
    assert (swarm.x[2] == before[2]).all()


# Consensus


@pytest.mark.parametrize(
    ("nodes", "trials", "figure"), [(8, 60, 15), (64, 10, 19.5), (1024, 1, 20)]
)
def test_consensus_takes_as_few_rounds_as_the_law_says(nodes, trials, figure):
    print(f"seed {SEED}")
    counts = []
    for trial in range(trials):
        swarm = Swarm("gossip", starts(nodes, SEED + trial, size=1), SwarmSettings(SEED + trial))
        goal, rounds = 1e-6 * disagreement(swarm.x), 0
        while disagreement(swarm.x) > goal:
            swarm.round()
            rounds += 1
        counts.append(rounds)
    # The deviation of a count falls with N; a single trial does not tell it, 0.5 is that at 64.
    error = max(np.std(counts), 0.5) / np.sqrt(trials)
    print(f"N={nodes}: {np.mean(counts):.2f} +- {error:.2f}")
    assert np.mean(counts) == pytest.approx(figure, abs=5 * error + 0.5)  # the figures are rounded


@pytest.mark.parametrize(("nodes", "f"), [(4, 0.5), (8, 0.5), (6, 0.3)])
def test_pulls_one_after_another_move_the_mean_as_far_as_computed(nodes, f):
    """Var(mean_inf - mean_0) = s^2 f / (N - f(N-1)), where s^2 = V0 / N.

    Begun at the unit vectors, the parameters show the weight of each start in what all agree on.
    """
    print(f"seed {SEED}")
    swarm, ratios = Swarm("gossip", np.eye(nodes), SwarmSettings(SEED, factor=f)), []
    contraction = 1 - (2 * f / (nodes - 1)) * (1 - f * (nodes - 1) / nodes)
    pulls = math.ceil(math.log(1e-4) / math.log(contraction))  # V / V0 = 1e-4 changes it as little
    for _ in range(150):
        for worker, start in zip(swarm.workers, np.eye(nodes), strict=True):
            worker.model.array[...] = start
        swarm.publish_snapshots(swarm.workers)
        for _ in range(pulls):
            one = [swarm.rng.choice(swarm.workers)]
            swarm.ask(one)
            swarm.merge(one)
            swarm.publish_snapshots(one)
        drift = swarm.x.mean(axis=0) - 1 / nodes
        ratios.append((drift**2).sum() / (disagreement(np.eye(nodes)) / nodes))
    error, expected = np.std(ratios) / np.sqrt(len(ratios)), f / (nodes - f * (nodes - 1))
    print(f"N={nodes} f={f}: {np.mean(ratios):.4f} +- {error:.4f}, expected {expected:.4f}")
    assert np.mean(ratios) == pytest.approx(expected, abs=5 * error + 1e-4)


@given(st.integers(2, 12), SEEDS)
@settings(max_examples=30)
def test_distances_of_pairs_tell_the_disagreement(nodes, seed):
    """V/N = (N-1)/(2N) * E|x_i - x_j|^2: what nodes measure of one another is enough."""
    x = starts(nodes, seed, size=5)
    values = [TensorValues([torch.from_numpy(row[:2]), torch.from_numpy(row[2:])]) for row in x]
    squares = [one.distance(two) ** 2 for one in values for two in values if one is not two]
    expected = (nodes - 1) / (2 * nodes) * np.mean(squares)
    assert disagreement(x) / nodes == pytest.approx(expected, rel=1e-12)
