"""Consensus control: when it asks to mix once more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.consensus_control import ConsensusControl

NORMS = st.floats(0.0, 1e100)
UNKNOWN = [None, math.nan, math.inf, -math.inf]


def after(norms, **options):
    control = ConsensusControl(**{"q": 1.0, **options})
    for norm in norms:
        control.observed(norm)
    return control


@given(st.floats(1e-6, 1e6), st.integers(1, 200), st.floats(0.0, 0.99))
def test_equal_steps_are_their_own_average_from_the_first_on(norm, count, smoothing):
    assert after([norm] * count, smoothing=smoothing).step_norm == pytest.approx(norm)


@given(st.lists(NORMS, min_size=1, max_size=50), st.floats(0.0, 0.99))
def test_the_average_is_the_weighted_mean_of_the_steps(norms, smoothing):
    weights = [smoothing**age for age in reversed(range(len(norms)))]
    mean = sum(w * norm for w, norm in zip(weights, norms, strict=True)) / sum(weights)
    assert after(norms, smoothing=smoothing).step_norm == pytest.approx(mean)


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_more_is_wanted_exactly_beyond_q_steps(q, norm):
    control = after([norm], q=q)
    threshold = q * norm
    assert control.wants_more(threshold * 1.001, 0)
    assert not control.wants_more(threshold * 0.999, 0)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_extra_rounds_of_a_step_are_bounded(most):
    control = after([1.0], most=most)
    extra_rounds = 0
    while control.wants_more(100.0, extra_rounds):
        extra_rounds += 1
        assert extra_rounds <= most
    assert extra_rounds == most


@pytest.mark.parametrize("distance", UNKNOWN)
def test_an_unknown_distance_never_asks_for_more(distance):
    assert not after([1e-6]).wants_more(distance, 0)


def test_before_the_first_step_nothing_is_asked_for():
    assert not after([]).wants_more(1e9, 0)
    assert not after(UNKNOWN).wants_more(1e9, 0)
    assert after(UNKNOWN).step_norm is None


@given(st.lists(NORMS, min_size=1, max_size=20), st.sampled_from(UNKNOWN))
def test_an_unknown_step_changes_nothing(norms, unknown):
    assert after([*norms, unknown]).step_norm == after(norms).step_norm
