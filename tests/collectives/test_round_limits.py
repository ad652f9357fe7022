"""How long a round waits for members that have not entered it."""

import pytest

from dpwa.policy.wait_budgets import RoundLimits

MAX_WAIT_S, MISSING_S, EXCHANGE_S = 1.0, 1.4, 0.5


def over_at(entered_at):
    """Return when the limits are over, if the others enter at these moments, by name."""
    limits = RoundLimits(dict.fromkeys(entered_at, MAX_WAIT_S), MISSING_S, EXCHANGE_S)
    for tick in range(1000):
        now = tick / 100
        if limits.are_over({name for name, at in entered_at.items() if now < at}, now):
            return now, limits.given_up
    raise AssertionError("they are never over")


@pytest.mark.parametrize(
    ("entered_at", "over", "given_up"),
    [
        pytest.param({"w2": 0.3, "w3": 9}, 1.3, ["w3"], id="nobody enters for as long as it may"),
        pytest.param({"w2": 0.7, "w3": 1.3, "w4": 9}, 1.4, [], id="one after another"),
        pytest.param({"w2": 0.7, "w3": 1.3}, 1.8, [], id="all are there, and exchange"),
        pytest.param({"w2": 9}, 1.0, ["w2"], id="nobody comes"),
    ],
)
def test_a_round_ends_in_time_to_go_on_without_those_who_are_missing(entered_at, over, given_up):
    assert over_at(entered_at) == (pytest.approx(over, abs=0.02), given_up)
