"""Elastic averaging: what it conserves, how fast it contracts, and where it becomes unstable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.elastic import elastic_limit, elastic_round, elastic_warning

SEED = 23
ROUNDS = 400
NODES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)
CASES = [(n, e) for n in (1, 2, 8, 64) for e in (0.1, 0.5, 1.0, 1.9)]


def start(nodes, seed, size=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(nodes, size)), rng.normal(size=size)


def size_after(alpha, nodes, curvature):
    """Train on |x|^2/2: one gradient step at the old x and one elastic step a round."""
    xs, center = start(nodes, SEED)
    before = np.abs(center).max() + np.abs(xs).max()
    for _ in range(ROUNDS):
        gradient = curvature * xs
        xs, center = elastic_round(xs, center, alpha)
        xs = xs - gradient
    return (np.abs(center).max() + np.abs(xs).max()) / before


@given(NODES, SEEDS, st.floats(0.0, 1.0))
def test_without_a_gradient_the_sum_is_conserved(nodes, seed, alpha):
    xs, center = start(nodes, seed)
    total = xs.sum(axis=0) + center
    xs, center = elastic_round(xs, center, alpha)
    # Each of the N + 1 sums rounds values that are at most about 6 + alpha * N * 12 large.
    assert xs.sum(axis=0) + center == pytest.approx(total, abs=1e-12 * (nodes + 1))


@given(NODES, SEEDS, st.floats(0.0, 1.0))
def test_the_gap_to_the_centre_changes_by_one_minus_n_plus_one_alpha(nodes, seed, alpha):
    xs, center = start(nodes, seed)
    gap = xs.mean(axis=0) - center
    xs, center = elastic_round(xs, center, alpha)
    expected = (1 - (nodes + 1) * alpha) * gap
    assert xs.mean(axis=0) - center == pytest.approx(expected, abs=1e-12 * (nodes + 1))


def test_both_sides_use_the_old_parameters():
    xs, center = elastic_round(np.array([[1.0], [3.0]]), np.array([0.0]), 0.25)
    assert xs.tolist() == [[0.75], [2.25]]
    assert center.tolist() == [1.0]


@pytest.mark.parametrize(("nodes", "curvature"), CASES)
def test_training_on_a_quadratic_is_stable_exactly_below_the_limit(nodes, curvature):
    limit = elastic_limit(nodes, curvature)
    below, above = (size_after(limit * share, nodes, curvature) for share in (0.9, 1.1))
    print(
        f"N = {nodes}, e = {curvature}, alpha < {limit:.4f}: {below:.2g} below, {above:.2g} above"
    )
    assert below < 0.1
    assert above > 10.0


@pytest.mark.parametrize(("nodes", "curvature"), CASES)
def test_the_matrix_of_mean_and_centre_has_eigenvalue_minus_one_at_the_limit(nodes, curvature):
    alpha = elastic_limit(nodes, curvature)
    matrix = [[1 - curvature - alpha, alpha], [nodes * alpha, 1 - nodes * alpha]]
    assert min(np.linalg.eigvals(matrix).real) == pytest.approx(-1.0)


@given(NODES)
def test_without_curvature_the_limit_is_two_over_n_plus_one(nodes):
    assert elastic_limit(nodes) == pytest.approx(2 / (nodes + 1))


@given(NODES, st.floats(2.0, 1e3))
def test_no_alpha_helps_where_the_gradient_alone_diverges(nodes, curvature):
    assert elastic_limit(nodes, curvature) == 0.0
    assert elastic_warning(0.0, nodes, curvature) is not None


@given(NODES, st.floats(0.0, 1.9), st.floats(0.0, 3.0))
def test_a_warning_is_given_from_the_limit_on(nodes, curvature, alpha):
    warning = elastic_warning(alpha, nodes, curvature)
    assert (warning is not None) == (alpha >= elastic_limit(nodes, curvature))


def test_the_papers_default_is_stable_for_any_number_of_nodes():
    assert all(elastic_warning(0.9 / nodes, nodes) is None for nodes in range(1, 1_000))


def test_the_warning_has_the_numbers():
    warning = elastic_warning(0.5, nodes=8, curvature=0.5)
    assert warning is not None
    assert all(part in warning for part in ("0.5", "8 nodes", f"{3 / 14:.3g}"))
