import math
import random
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.errors import UserError
from dpwa.policy import interpolation as rules
from dpwa.policy.interpolation import (
    divergence_scale,
    interpolation,
    interpolation_names,
    merge_factor,
    mixed_clock,
    read_ahead,
    register_interpolation,
)
from dpwa.types import StrictModel, TrainingProgress, loss_value

clocks = st.floats(0, 1e12)
losses = st.none() | st.just(math.inf) | st.floats(-1e6, 1e6)
standings = st.builds(TrainingProgress, clock=clocks, loss=losses)


def factor(name, own, peer, threshold=0.0, **options):
    method = interpolation(name)
    return merge_factor(method, method.options(**options), own, peer, threshold)


@pytest.mark.parametrize(
    ("own_clock", "peer_clock", "expected"), [(1, 3, 0.75), (3, 1, 0.25), (0, 0, 0.5), (5, 0, 0.0)]
)
def test_clock_weighs_by_share_of_the_clocks(own_clock, peer_clock, expected):
    own, peer = TrainingProgress(clock=own_clock), TrainingProgress(clock=peer_clock)
    assert factor("clock", own, peer) == expected


@pytest.mark.parametrize(
    ("own_loss", "peer_loss", "expected"),
    [
        (3.0, 1.0, 0.75),  # the worse my loss, the more I take
        (1.0, 3.0, 0.25),
        (0.0, 0.0, 0.5),
        (0.0, 1.0, 0.0),
        (None, 1.0, 0.5),  # nothing to compare
        (1.0, None, 0.5),
        (math.inf, 1.0, 1.0),  # I have diverged
        (1.0, math.inf, 0.0),  # the peer has
        (math.inf, math.inf, 0.5),
        (-2.0, 1.0, 0.0),  # negative counts as 0
        (1.0, -2.0, 1.0),
        (-1.0, -2.0, 0.5),
        (1e308, 1e308, 0.5),
        (1e308, 1e-308, 1.0),
    ],
)
def test_loss_weighs_by_share_of_the_losses(own_loss, peer_loss, expected):
    own, peer = TrainingProgress(clock=1, loss=own_loss), TrainingProgress(clock=1, loss=peer_loss)
    assert factor("loss", own, peer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("own_loss", "peer_loss", "expected"),
    [
        (2.0, 1.0, 0.1),
        (1.0, 2.0, 0.0),
        (1.0, 1.0, 0.0),
        (None, 1.0, 0.1),
        (1.0, None, 0.0),
        (math.inf, 1.0, 0.1),
        (math.inf, math.inf, 0.0),
        (-1.0, -2.0, 0.1),
    ],
)
def test_leader_pulls_only_toward_a_lower_loss(own_loss, peer_loss, expected):
    own, peer = TrainingProgress(clock=1, loss=own_loss), TrainingProgress(clock=1, loss=peer_loss)
    assert factor("leader", own, peer) == expected


@given(standings, standings, st.sampled_from(["constant", "clock", "loss", "leader"]))
def test_every_factor_is_a_number_from_0_to_1(own, peer, name):
    assert 0.0 <= factor(name, own, peer, threshold=0.2) <= 1.0


@given(standings, standings)
def test_clock_and_loss_rules_of_both_ends_add_up_to_1(own, peer):
    for name in ("clock", "loss"):
        assert factor(name, own, peer) + factor(name, peer, own) == pytest.approx(1.0)


def test_below_the_divergence_threshold_every_rule_takes_less():
    own, peer = TrainingProgress(clock=1, loss=0.05), TrainingProgress(clock=1, loss=1.0)
    assert factor("constant", own, peer, threshold=0.2, value=0.8) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("loss", "threshold", "scale"),
    [
        (0.1, 0.0, 1),
        (None, 0.2, 1),
        (math.inf, 0.2, 1),
        (0.2, 0.2, 1),
        (0.05, 0.2, 0.25),
        (-1, 0.2, 0),
    ],
)
def test_divergence_scale(loss, threshold, scale):
    assert divergence_scale(loss, threshold) == pytest.approx(scale)


@given(clocks, clocks, st.floats(0, 1))
def test_the_mixed_clock_lies_between_both(own, peer, f):
    slack = 1e-9 * max(own, peer)
    assert min(own, peer) - slack <= mixed_clock(own, peer, f) <= max(own, peer) + slack


def test_the_mixed_clock_goes_as_far_toward_the_peer_as_the_parameters():
    assert [mixed_clock(2.0, 10.0, f) for f in (0.0, 0.25, 1.0)] == [2.0, 4.0, 10.0]


def gone_by_nodes_that_read_late(nodes, f, turns, rng):
    """How far they go. They take turns; each published at its last turn, and others have since."""
    x, clocks = [0.0] * nodes, [1.0] * nodes  # as published
    for _ in range(turns):
        for own in rng.sample(range(nodes), nodes):
            peer = rng.choice([other for other in range(nodes) if other != own])
            kept = 1.0 - read_ahead(clocks[peer] - clocks[own], f)
            stepped = x[own] + 1.0
            x[own] = stepped + f * (x[peer] - kept * x[own] - (1.0 - kept) * stepped)
            clocks[own] = mixed_clock(clocks[own], clocks[peer], f) + 1.0
    return sum(x) / nodes


@pytest.mark.parametrize("f", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_nodes_that_read_late_go_as_far_as_by_their_own_steps(nodes, f):
    """On average, over 100 runs.

    With 8 nodes and f = .5, where that is most, one run goes .088 f too far, with a standard
    deviation of .0136 f. The bound is 8.7 standard deviations of the average above that, so another
    seed would fail with a chance of 1e-17.
    """
    turns, runs, rng = 100, 100, random.Random(5)
    gone = [gone_by_nodes_that_read_late(nodes, f, turns, rng) for _ in range(runs)]
    # 1 / (1 - f / 2) times as far, if the whole step were kept
    assert sum(gone) / runs == pytest.approx(turns, rel=0.1 * f)


@given(st.floats(-1e6, 1e6), st.floats(0.0, 1.0))
def test_whoever_is_behind_or_far_ahead_was_not_read_late(ahead, f):
    assert 0.0 <= read_ahead(ahead, f) <= 1.0
    if not 0.0 < ahead < 2.0:
        assert read_ahead(ahead, f) == 0.0


class TestRegistry:
    @pytest.fixture(autouse=True)
    def _own_registry(self, monkeypatch):
        monkeypatch.setattr(rules, "_REGISTRY", deepcopy(rules._REGISTRY))

    def test_a_rule_of_the_users_own_is_found_by_name_with_its_options(self):
        class CautiousOptions(StrictModel):
            limit: float = 0.25

        @register_interpolation("cautious", CautiousOptions)
        def cautious(options, own, peer):
            return min(options.limit, 0.5)

        assert "cautious" in interpolation_names()
        assert factor("cautious", TrainingProgress(clock=1), TrainingProgress(clock=1)) == 0.25
        assert (
            factor("cautious", TrainingProgress(clock=1), TrainingProgress(clock=1), limit=0.1)
            == 0.1
        )

    @pytest.mark.parametrize("value", [math.nan, -0.1, 1.1])
    def test_an_impossible_factor_is_the_users_error(self, value):
        register_interpolation("broken")(lambda options, own, peer: value)
        with pytest.raises(UserError, match="'broken' returned"):
            factor("broken", TrainingProgress(clock=1), TrainingProgress(clock=1))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (2, 2.0),
        (math.nan, math.inf),
        (math.inf, math.inf),
        (-math.inf, math.inf),
        (3**700, math.inf),
        (-(2**1024), math.inf),
    ],
)
def test_loss_value_never_lets_a_nan_through(value, expected):
    assert loss_value(value) == expected
