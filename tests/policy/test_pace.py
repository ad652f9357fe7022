"""Pace: who is waited for, for how long, and when a node out of pace comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.wait_budgets import FLOOR_S, MAX_WAIT_S, Absence, Patience

TIMEOUT_S = 2.5
SECONDS = st.floats(0.0, 100.0)
NAMES = ["w2", "w3", "w4"]
ROUNDS = st.lists(st.tuples(st.lists(SECONDS, min_size=3, max_size=3), SECONDS), max_size=40)


@given(ROUNDS)
def test_nobody_is_waited_for_longer_than_the_timeout_nor_shorter_than_the_floor(rounds):
    patience = Patience(TIMEOUT_S)
    for missed, worked_s in rounds:
        patience.took_part(dict(zip(NAMES, missed, strict=True)), worked_s)
        for left_s in patience.allowances(NAMES).values():
            assert FLOOR_S <= left_s <= TIMEOUT_S


def late_by(late_s, *, worked_s=0.1, others=3, rounds=2000):
    """Return the allowance of a node that is late by so much again and again."""
    patience, names = Patience(TIMEOUT_S), [f"w{index}" for index in range(others)]
    for _ in range(rounds):
        patience.took_part({name: late_s * (name == "w0") for name in names}, worked_s)
    return patience.allowances(["w0"])["w0"]


@pytest.mark.parametrize("others", [1, 2, 3, 7])
def test_it_is_waited_for_as_long_as_all_make_more_steps_with_it_than_the_others_alone(others):
    # With n nodes, n / (w + late) against (n - 1) / w steps a second: even at late = w / (n - 1).
    even_s = 0.1 / others
    assert late_by(0.9 * even_s, others=others) == MAX_WAIT_S
    assert late_by(1.1 * even_s, others=others) == FLOOR_S


def test_among_many_a_tenth_of_a_step_is_waited_for_always():
    assert late_by(0.009, others=100) == MAX_WAIT_S
    assert late_by(0.012, others=100) == FLOOR_S


def test_a_single_late_step_is_forgiven_and_paid_back():
    patience = Patience(TIMEOUT_S)
    for number in range(100):
        patience.took_part({"w2": 0.4 * (number == 50), "w3": 0.0}, 0.1)
        if number == 50:
            assert patience.allowances(["w2"])["w2"] == pytest.approx(0.15)
    assert patience.allowances(["w2"])["w2"] == MAX_WAIT_S


def test_long_steps_may_be_late_by_more():
    patience = Patience(TIMEOUT_S)
    patience.took_part({"w2": 0.0}, 0.3)
    assert patience.allowances(["w2"])["w2"] == pytest.approx(1.5)


def test_who_comes_back_may_be_late_by_a_step():
    patience = Patience(TIMEOUT_S)
    patience.took_part({"w2": 5.0, "w3": 0.0}, 0.2)
    patience.came_back(["w2", "w5"], 0.2)
    assert patience.allowances(["w2", "w5"]) == {"w2": 0.2, "w5": TIMEOUT_S}


def test_rounds_that_are_broken_off_in_vain_are_soon_waited_for():
    patience, allowed = Patience(TIMEOUT_S), []
    patience.took_part({"w2": 5.0}, 0.1)
    for _ in range(9):
        allowed.append(patience.allowances(["w2"])["w2"])
        patience.was_hasty(["w2"])
    assert allowed == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 2.5]
    for _ in range(20):  # and no longer than usual, once they come in time
        patience.took_part({"w2": 0.0}, 0.1)
    assert patience.allowances(["w2"])["w2"] == MAX_WAIT_S


def test_who_is_late_again_and_again_is_not_waited_for_however_patient_others_have_become():
    patience = Patience(TIMEOUT_S)
    patience.took_part({"w2": 0.0, "w3": 0.0}, 0.1)
    for _ in range(9):
        patience.was_hasty(["w2"])
    for _ in range(60):
        patience.took_part({"w2": 0.16, "w3": 0.0}, 0.1)
    assert patience.allowances(["w2"])["w2"] == FLOOR_S


def test_a_node_comes_back_at_once_then_after_ever_more_steps():
    absence, waited = Absence(), []
    for _ in range(12):
        absence = absence.left(100)
        step = next(step for step in range(100, 1000) if absence.may_enter(step))
        waited.append(step - 100)
        absence = absence.returned(step)
    assert waited == [0, 1, 3, 7, 15, 31, 63, 127, 255, 255, 255, 255]


def test_who_has_kept_pace_is_trusted_again():
    absence = Absence()
    for _ in range(4):
        absence = absence.left(10).returned(10)
    assert absence.left(20).steps == 15
    assert absence.left(100).steps == 0


def test_whoever_keeps_pace_does_not_enter():
    assert not Absence().may_enter(10**6)
