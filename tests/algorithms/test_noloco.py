"""NoLoCo by its algorithm: the formula step by step, what moves the mean, and what is stable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.swarms import Swarm, SwarmSettings

from dpwa.algorithms.outer import noloco_limit
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


# The limit of gamma, checked by real random pulls. It is that of many nodes.

NODES = 256
ROUNDS = 300
TRIALS = 8
MOMENTUM = st.floats(0.0, 0.99)


def moments(alpha, gamma):
    """Return the 3x3 matrix of (E ee, E em, E mm), from one outer step to the next.

    With x = b the step is m' = a*m - g*(e - e_j)/2, e' = e + m', where e_j, the partner's, has
    the moments of e and no correlation with e or m.
    """
    a, g = alpha, gamma
    return np.array(
        [
            [1 - g + g**2 / 2, a * (2 - g), a**2],
            [-g / 2 + g**2 / 2, a * (1 - g), a**2],
            [g**2 / 2, -a * g, a**2],
        ]
    )


def radius(alpha, gamma):
    """Return by which factor the disagreement changes each round."""
    return float(np.abs(np.linalg.eigvals(moments(alpha, gamma))).max())


def step(b, m, partner, alpha, gamma):
    m = alpha * m + gamma * ((b + partner) / 2 - b)
    return b + m, m


def growth(alpha, gamma):
    """Mean growth of the log of the disagreement a round, and its standard error."""
    rng, found = np.random.default_rng(SEED), []
    for _ in range(TRIALS):
        b, m = rng.normal(size=NODES), np.zeros(NODES)
        before = b.var()
        for _ in range(ROUNDS):
            partners = (np.arange(NODES) + rng.integers(1, NODES, NODES)) % NODES
            b, m = step(b, m, b[partners], alpha, gamma)
            b = b - b.mean()  # nothing depends on the mean, but its digits would be lost
        found.append(np.log(b.var() / before) / ROUNDS)
    return np.mean(found), np.std(found) / np.sqrt(TRIALS)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
def test_the_nodes_stay_together_exactly_below_the_limit(alpha):
    limit = noloco_limit(alpha)
    below, above = growth(alpha, 0.9 * limit), growth(alpha, 1.1 * limit)
    print(f"seed {SEED}, alpha {alpha}: {below} at 0.9 of the limit, {above} at 1.1 of it")
    assert below[0] + 5 * below[1] < 0 < above[0] - 5 * above[1]


def test_the_matrix_gives_the_moments_after_one_step():
    rng = np.random.default_rng(SEED)
    # The momentum is correlated with the base, as it is in a run.
    e, partner, free = rng.normal(size=(3, 400_000))
    m = 0.6 * e + 0.5 * free
    expected = moments(0.5, 0.7) @ [1.0, 0.6, 0.6**2 + 0.5**2]
    e_after, m_after = step(e, m, partner, 0.5, 0.7)
    for values, mean in zip((e_after**2, e_after * m_after, m_after**2), expected, strict=True):
        error = values.std() / np.sqrt(values.size)
        assert values.mean() == pytest.approx(mean, abs=5 * error)


@given(MOMENTUM, st.floats(0.01, 0.99))
def test_the_spectral_radius_passes_one_at_the_limit(alpha, share):
    limit = noloco_limit(alpha)
    assert radius(alpha, limit) == pytest.approx(1.0, abs=1e-9)
    assert radius(alpha, 0.99 * limit) < 1.0 < radius(alpha, 1.01 * limit)
    assert radius(alpha, share * limit) < 1.0


def test_the_usual_values_are_stable_but_not_with_the_momentum_of_diloco():
    assert noloco_limit(0.5) > 0.7 > noloco_limit(0.9)
