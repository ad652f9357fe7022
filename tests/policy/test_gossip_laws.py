"""What pull gossip does to the disagreement V = sum |x_i - mean|^2, by Monte Carlo.

The peers are drawn by the real flow control (all scores equal, so uniformly) and the factor comes
from the real constant rule; only the parameters are numbers here. Tolerances are five standard
errors of the mean over the trials, from the trials themselves. What pulls do over many rounds is
tested in tests/algorithms/test_gossip.py.
"""

import random

import numpy as np
import pytest

from dpwa.policy.flow_control import FlowControl
from dpwa.policy.interpolation import constant, interpolation, merge_factor
from dpwa.types import TrainingProgress

SEED = 11
HERE = TrainingProgress(clock=1.0)


def factor_of(value):
    method = interpolation("constant")
    assert method.rule is constant
    return merge_factor(method, method.options(value=value), HERE, HERE, 0.0)


def flows_of(nodes):
    return [FlowControl({str(j): 1000 for j in range(nodes) if j != i}) for i in range(nodes)]


def pull_round(x, flows, rng, f, probability=1.0):
    """All nodes pull at once from what the others published before (lockstep)."""
    published = x.copy()
    for i, flow in enumerate(flows):
        if rng.random() < probability:
            peer, _ = flow.choose(rng, now=0.0)
            x[i] = (1 - f) * x[i] + f * published[int(peer)]


def disagreement(x):
    return float(((x - x.mean()) ** 2).sum())


def assert_mean_ratio(ratios, expected):
    error = np.std(ratios) / np.sqrt(len(ratios))
    assert np.mean(ratios) == pytest.approx(expected, abs=5 * error)


@pytest.mark.parametrize(("nodes", "f"), [(2, 0.5), (4, 0.5), (8, 0.3), (8, 1.0)])
def test_one_random_pull_contracts_as_computed(nodes, f):
    print(f"seed {SEED}")
    rng, flows, f = random.Random(SEED), flows_of(nodes), factor_of(f)
    ratios = []
    for _ in range(4_000):
        x = np.array([rng.gauss(0, 1) for _ in range(nodes)])
        before = disagreement(x)
        i = rng.randrange(nodes)
        peer, _ = flows[i].choose(rng, now=0.0)
        x[i] = (1 - f) * x[i] + f * x[int(peer)]
        ratios.append(disagreement(x) / before)
    assert_mean_ratio(ratios, 1 - (2 * f / (nodes - 1)) * (1 - f * (nodes - 1) / nodes))


@pytest.mark.parametrize(("nodes", "f", "p"), [(4, 0.5, 1.0), (8, 0.5, 0.5), (8, 0.3, 1.0)])
def test_lockstep_pulls_contract_as_computed(nodes, f, p):
    print(f"seed {SEED}")
    rng, flows, f = random.Random(SEED), flows_of(nodes), factor_of(f)
    ratios = []
    for _ in range(2_000):
        x = np.array([rng.gauss(0, 1) for _ in range(nodes)])
        before = disagreement(x)
        pull_round(x, flows, rng, f, probability=p)
        ratios.append(disagreement(x) / before)
    others = nodes - 1
    expected = (
        1
        - 2 * p * f * (1 - f) * nodes / others
        - f**2 * (2 * p / others - p**2 * nodes / others**2)
    )
    assert_mean_ratio(ratios, expected)
