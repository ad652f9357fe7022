"""Outer steps on random pairs: the limits, checked by real random pulls.

Each of the nodes draws its own partner, uniformly among the others. The limits are those of many
nodes; the disagreement of N = 256 follows them to within its own spread.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.outer import nesterov_limit, noloco_limit

SEED = 41
NODES = 256
ROUNDS = 300
TRIALS = 8
MOMENTA = [0.0, 0.3, 0.5, 0.7, 0.9]
MOMENTUM = st.floats(0.0, 0.99)


def noloco(alpha, gamma):
    """The outer step with x = phi, so without beta: there is nothing to train."""

    def step(phi, m, partner):
        m = alpha * m + gamma * ((phi + partner) / 2 - phi)
        return phi + m, m

    return step


def nesterov(lr, momentum):
    """torch.optim.SGD(nesterov=True) on D, with x = phi."""

    def step(phi, v, partner):
        difference = phi - (phi + partner) / 2
        v = momentum * v + difference
        return phi - lr * (difference + momentum * v), v

    return step


def noloco_radius(alpha, gamma):
    """Return by which factor the disagreement V = sum |phi_i - mean|^2 changes each round."""
    return spectral_radius(noloco_moments(alpha, gamma))


def noloco_moments(alpha, gamma):
    """Return the 3x3 matrix of (E ee, E em, E mm), from one outer step to the next.

    With x = phi the step is m' = a*m - g*(e - e_j)/2, e' = e + m', where e_j, the partner's, has
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


def nesterov_radius(lr, momentum):
    """Return by which factor the disagreement V = sum |phi_i - mean|^2 changes each round."""
    return spectral_radius(nesterov_moments(lr, momentum))


def nesterov_moments(lr, momentum):
    """Return the 3x3 matrix of (E ee, E ev, E vv), from one outer step to the next.

    With x = phi, D = (e - e_j)/2, so E DD = E eD = E ee/2 and E vD = E ev/2; and with
    p = lr*(1 + mu), q = lr*mu^2 the step is e' = e - p*D - q*v, v' = mu*v + D.
    """
    mu, p, q = momentum, lr * (1 + momentum), lr * momentum**2
    return np.array(
        [
            [1 - p + p**2 / 2, -2 * q + p * q, q**2],
            [(1 - p) / 2, mu - (p * mu + q) / 2, -q * mu],
            [0.5, mu, mu**2],
        ]
    )


def spectral_radius(matrix):
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def partners(rng, nodes):
    return (np.arange(nodes) + rng.integers(1, nodes, nodes)) % nodes


def growth(step, rng):
    """Mean growth of log V a round over `ROUNDS`, and its standard error over the trials."""
    found = []
    for _ in range(TRIALS):
        phi, v = rng.normal(size=NODES), np.zeros(NODES)
        before = phi.var()
        for _ in range(ROUNDS):
            phi, v = step(phi, v, phi[partners(rng, NODES)])
            phi = phi - phi.mean()  # nothing depends on the mean, but its digits would be lost
        found.append(np.log(phi.var() / before) / ROUNDS)
    return np.mean(found), np.std(found) / np.sqrt(TRIALS)


def assert_stable_exactly_below(limit, step_of):
    rng = np.random.default_rng(SEED)
    (below, below_error), (above, above_error) = (
        growth(step_of(share * limit), rng) for share in (0.9, 1.1)
    )
    print(f"limit {limit:.4f}: log V a round {below:+.4f} at 0.9 of it, {above:+.4f} at 1.1 of it")
    assert below + 5 * below_error < 0 < above - 5 * above_error


@pytest.mark.parametrize("alpha", MOMENTA)
def test_noloco_keeps_the_nodes_together_exactly_below_its_limit(alpha):
    print(f"seed {SEED}, alpha {alpha}")
    assert_stable_exactly_below(noloco_limit(alpha), lambda gamma: noloco(alpha, gamma))


@pytest.mark.parametrize("momentum", MOMENTA)
def test_nesterov_keeps_the_nodes_together_exactly_below_its_limit(momentum):
    print(f"seed {SEED}, momentum {momentum}")
    assert_stable_exactly_below(nesterov_limit(momentum), lambda lr: nesterov(lr, momentum))


@pytest.mark.parametrize(
    ("step", "moments"),
    [
        (noloco(0.5, 0.7), noloco_moments(0.5, 0.7)),
        (noloco(0.9, 0.3), noloco_moments(0.9, 0.3)),
        (nesterov(1.0, 0.0), nesterov_moments(1.0, 0.0)),
        (nesterov(0.7, 0.9), nesterov_moments(0.7, 0.9)),
    ],
)
def test_the_matrix_gives_the_moments_after_one_step(step, moments):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    # The momentum is correlated with the parameters, as it is in a run.
    e, partner, noise = rng.normal(size=(3, 400_000))
    v = 0.6 * e + 0.5 * noise
    expected = moments @ [1.0, 0.6, 0.6**2 + 0.5**2]
    e_after, v_after = step(e, v, partner)
    for values, mean in zip((e_after**2, e_after * v_after, v_after**2), expected, strict=True):
        error = values.std() / np.sqrt(values.size)
        assert values.mean() == pytest.approx(mean, abs=5 * error)


@given(MOMENTUM)
def test_the_spectral_radius_is_one_at_the_limit_and_passes_it_there(momentum):
    for radius_of, limit in (
        (lambda lr: nesterov_radius(lr, momentum), nesterov_limit(momentum)),
        (lambda gamma: noloco_radius(momentum, gamma), noloco_limit(momentum)),
    ):
        assert radius_of(limit) == pytest.approx(1.0, abs=1e-9)
        assert radius_of(0.99 * limit) < 1.0 < radius_of(1.01 * limit)


@given(MOMENTUM, st.floats(0.01, 0.99))
def test_every_setting_below_the_limit_is_stable(momentum, share):
    assert nesterov_radius(share * nesterov_limit(momentum), momentum) < 1.0
    assert noloco_radius(momentum, share * noloco_limit(momentum)) < 1.0


def test_local_sgd_halves_the_disagreement_each_round():
    assert nesterov_radius(lr=1.0, momentum=0.0) == pytest.approx(0.5)


def test_the_defaults_of_diloco_and_noloco_are_stable():
    assert nesterov_limit(0.9) == pytest.approx(0.848, abs=5e-4)
    assert noloco_limit(0.5) > 0.7


def test_noloco_with_the_momentum_of_diloco_is_not():
    assert noloco_limit(0.9) < 0.7
    rate, error = growth(noloco(0.9, 0.7), np.random.default_rng(SEED))
    assert rate - 5 * error > 0
