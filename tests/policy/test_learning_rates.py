"""Learning rates spread over the nodes: where they lie and what their middle is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.learning_rates import lr_scale

NODES = st.integers(1, 200)
EXACT = 1e-12  # some hundred roundings


def scales_of(spread, nodes):
    return [lr_scale(spread, index, nodes) for index in range(nodes)]


@given(NODES)
def test_without_a_spread_every_node_has_the_base(nodes):
    assert scales_of("none", nodes) == [1.0] * nodes


@given(NODES)
def test_the_arithmetic_mean_of_linear_is_the_base(nodes):
    assert math.fsum(scales_of("linear", nodes)) / nodes == pytest.approx(1.0, abs=EXACT)


@given(NODES)
def test_the_geometric_mean_of_power_is_the_base(nodes):
    logs = [math.log(scale) for scale in scales_of("power", nodes)]
    assert math.fsum(logs) == pytest.approx(0.0, abs=nodes * EXACT)


@given(st.integers(2, 200))
def test_steps_are_even_and_the_ends_as_told(nodes):
    linear, power = scales_of("linear", nodes), scales_of("power", nodes)
    assert (linear[0], linear[-1], power[0], power[-1]) == (0.5, 1.5, 0.5, 2.0)
    for index in range(nodes - 1):
        assert linear[index + 1] - linear[index] == pytest.approx(1 / (nodes - 1))
        assert power[index + 1] / power[index] == pytest.approx(4 ** (1 / (nodes - 1)))


@pytest.mark.parametrize("spread", ["none", "linear", "power"])
def test_a_single_node_has_the_base(spread):
    assert scales_of(spread, 1) == [1.0]
