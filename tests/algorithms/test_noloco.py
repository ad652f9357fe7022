"""NoLoCo by its algorithm: the formula step by step, what moves the mean, and what is stable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.swarms import Swarm, SwarmSettings

from dpwa.policy.topology import topology

SEED = 43
SIZE = 4
one_peer = topology("one_peer_exponential")
PERMUTING = SwarmSettings(SEED, topology=one_peer, topology_options=one_peer.options())


class Reference:
    """m = a*m + b*mean(x - phi) + g*(mean(phi) - phi_i); phi += m; x = phi, with plain arrays."""

    def __init__(self, starts, alpha, beta, gamma):
        self.factors = alpha, beta, gamma
        self.x, self.phi, self.m = starts.copy(), starts.copy(), np.zeros_like(starts)
        self.pub_x, self.pub_phi = starts.copy(), starts.copy()

    def publish(self, i):
        self.pub_x[i], self.pub_phi[i] = self.x[i], self.phi[i]

    def merge(self, i, j):
        a, b, g = self.factors
        drift = (self.pub_x[i] - self.pub_phi[i] + self.pub_x[j] - self.pub_phi[j]) / 2
        between = (self.pub_phi[i] + self.pub_phi[j]) / 2 - self.pub_phi[i]
        self.m[i] = a * self.m[i] + b * drift + g * between
        stepped_since = self.x[i] - self.pub_x[i]
        self.phi[i] = self.pub_phi[i] + self.m[i]
        self.x[i] = self.phi[i] + stepped_since


def disagreement(x):
    return float(((x - x.mean(axis=0)) ** 2).sum())


@given(
    st.sampled_from([(0.5, 0.7, 0.7), (0.3, 0.9, 0.4), (0.0, 0.5, 1.5), (0.9, 0.2, 0.3)]),
    st.integers(1, 4),
    st.integers(2, 5),
    st.floats(0.0, 0.6),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_it_is_the_formula_with_local_steps_meanwhile_and_partners_missed(
    factors, period, nodes, missed, seed
):
    """Who misses its partner publishes anew in the next round, and takes what it finds then."""
    rng = np.random.default_rng(seed)
    starts, (alpha, beta, gamma) = rng.normal(size=(nodes, SIZE)), factors
    options = {"period": period, "alpha": alpha, "beta": beta, "gamma": gamma}
    swarm = Swarm("noloco", starts, SwarmSettings(seed), **options)
    reference, steps = Reference(starts, *factors), [0] * nodes
    is_first = True

    def train(worker):
        step = rng.normal(size=SIZE)
        worker.model.array += step
        reference.x[worker.number] += step

    for _ in range(12):
        done = [len(worker.merged) for worker in swarm.workers]
        swarm.publish_snapshots(swarm.workers)
        steps = [0 if is_first else count + 1 for count in steps]
        for i in range(nodes):
            if is_first or steps[i] >= period:
                reference.publish(i)
        swarm.ask([worker for worker in swarm.workers if rng.random() >= missed])
        for worker in swarm.workers:
            train(worker)
        swarm.merge(swarm.workers)
        for i, worker in enumerate(swarm.workers):
            if len(worker.merged) > done[i]:
                assert steps[i] >= period
                reference.merge(i, int(worker.merged[-1][0][1:]))
                steps[i] = 0
        is_first = False
        assert swarm.x == pytest.approx(reference.x, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(0.5, 0.7, 0.7), (0.3, 0.9, 0.4)])
def test_the_mean_is_moved_by_beta_times_the_mean_drift_alone(alpha, beta, gamma):
    """When everybody is heard by exactly one, pulling the pairs together moves no mean."""
    rng, period = np.random.default_rng(SEED), 3
    options = {"period": period, "alpha": alpha, "beta": beta, "gamma": gamma}
    swarm = Swarm("noloco", rng.normal(size=(8, SIZE)), PERMUTING, **options)
    phi, momentum, is_quiet = swarm.x.mean(axis=0), np.zeros(SIZE), False

    def train(worker):
        if not is_quiet:
            worker.model.array += rng.normal(size=SIZE)

    swarm.round(train)
    for _ in range(6):
        for _ in range(period - 1):
            swarm.round(train)
        is_quiet, drift = True, swarm.x.mean(axis=0) - phi
        swarm.round(train)
        momentum = alpha * momentum + beta * drift
        phi, is_quiet = phi + momentum, False
        assert swarm.x.mean(axis=0) == pytest.approx(phi, abs=1e-12)
        assert disagreement(swarm.x) > 0.1  # it is not that all are equal
