"""When nodes that end their training agree: see `dpwa.policy.finishing`."""

import pytest

from dpwa.policy.finishing import FLAT_ROUNDS, STILL_FALLS, Agreement


def after(distances):
    agreement = Agreement()
    for distance in distances:
        agreement = agreement.measured(distance, length=10.0)
    return agreement


def test_a_distance_of_nothing_is_agreement():
    assert after([0.0]).is_reached


def test_a_distance_that_falls_slowly_falls():
    assert not after([0.95**k for k in range(100)]).is_reached


def test_a_distance_that_hardly_falls_or_swings_does_not_fall():
    assert after([0.98**k for k in range(FLAT_ROUNDS + 1)]).is_reached
    assert after([1.0, 1.4, 0.95, 1.4]).is_reached


@pytest.mark.parametrize("rounds", range(1, FLAT_ROUNDS + 1))
def test_a_fall_in_time_begins_anew(rounds):
    flat = [1.0] * rounds
    assert not after([*flat, 0.99 * STILL_FALLS]).is_reached
