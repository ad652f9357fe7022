"""Rates over the last samples of a node."""

import math

import numpy as np
import pytest

from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.history import SampleHistory
from dpwa.observe.rates import (
    ENOUGH_STEPS,
    UNKNOWN,
    latest,
    rates_of,
    rates_of_newest,
    since_restart,
)


def samples(count, **per_second):
    """One sample a second; counters grow by so much each second, and begin at 0."""
    rows = np.zeros((count, 1 + len(NAMES)))
    rows[:, 0] = 1e9 + np.arange(count)
    for name, growth in per_second.items():
        rows[:, 1 + INDEX[name]] = growth * np.arange(count)
    return rows


def history_of(rows):
    history = SampleHistory(len(NAMES))
    for row in rows:
        history.add_sample(row[0], row[1:])
    return history


def test_what_a_second_brings():
    rates = rates_of(
        samples(
            11,
            steps=4,
            merges=2,
            train_s=0.6,
            publish_s=0.1,
            wait_s=0.2,
            merge_s=0.1,
            received_bytes=3e6,
            sent_bytes=1e6,
            staleness_sum=5,
        )
    )
    assert rates.seconds == 10
    assert rates.steps_per_s == pytest.approx(4)
    assert rates.step_train_s == pytest.approx(0.15)
    assert rates.merges_per_s == pytest.approx(2)
    assert rates.shares == pytest.approx({"train": 0.6, "publish": 0.1, "wait": 0.2, "merge": 0.1})
    assert (rates.received_per_s, rates.sent_per_s) == (3e6, 1e6)
    assert rates.staleness == pytest.approx(2.5)
    assert rates.idle_s == 0


@pytest.mark.parametrize("count", [0, 1])
def test_with_fewer_than_two_samples_nothing_is_known(count):
    rows = samples(count, steps=4)
    assert rates_of(rows) == UNKNOWN
    assert rates_of_newest(history_of(rows), 10.0) == UNKNOWN


def test_without_a_merge_there_is_no_staleness_and_without_time_no_share():
    rates = rates_of(samples(5, steps=4))
    assert (rates.staleness, rates.shares) == (None, None)
    assert rates.merges_per_s == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_makes_no_rate(value):
    rows = samples(5, steps=4, train_s=0.5, wait_s=0.5)
    rows[-1, [1 + INDEX["steps"], 1 + INDEX["wait_s"]]] = value
    rates = rates_of(rows)
    assert (rates.steps_per_s, rates.step_train_s, rates.shares) == (None, None, None)


def test_of_a_node_that_does_not_tell_its_steps_nothing_is_known_of_them():
    rates = rates_of(samples(5, steps=math.nan))
    assert (rates.steps_per_s, rates.idle_s) == (None, 0)


def test_a_restart_begins_anew():
    rows = samples(20, steps=4)
    rows[12:, 1 + INDEX["steps"]] = 2 * np.arange(8)
    assert len(since_restart(rows)) == 8
    assert rates_of(rows).steps_per_s == pytest.approx(2)
    assert since_restart(samples(3, steps=1)).shape == (3, 1 + len(NAMES))


def test_a_node_that_stands_still_is_idle_since_its_last_step():
    rows = samples(20, steps=4, train_s=1)
    rows[12:, 1 + INDEX["steps"]] = rows[12, 1 + INDEX["steps"]]
    assert rates_of(rows).idle_s == 7
    assert rates_of_newest(history_of(rows), 3.0).idle_s == 7  # from before the window
    assert rates_of(samples(9, train_s=1)).idle_s == 8  # no step was ever seen


def test_a_node_that_has_ended_its_training_is_not_idle():
    rows = samples(40, steps=4, train_s=1)
    for name in ("steps", "train_s"):
        rows[12:, 1 + INDEX[name]] = rows[12, 1 + INDEX[name]]
    assert rates_of(rows).idle_s == 0


def test_the_window_is_as_short_as_there_are_steps_enough():
    fast, slow = history_of(samples(300, steps=4)), history_of(samples(300, steps=0.5))
    assert rates_of_newest(fast, 10.0).seconds == 10
    found = rates_of_newest(slow, 10.0)
    assert found.seconds == 60
    assert found.steps_per_s * found.seconds >= ENOUGH_STEPS
    assert rates_of_newest(history_of(samples(300, steps=0.01)), 10.0).seconds == 299


def test_the_latest_value_is_told_as_it_is():
    rows = samples(3)
    rows[-1, 1 + INDEX["loss"]] = math.inf
    rows[-1, 1 + INDEX["clock"]] = math.nan
    assert latest(rows, "loss") == math.inf
    assert latest(rows, "clock") is None
    assert latest(rows[:0], "loss") is None


def stopped(speed, trained, still, **per_second):
    """Samples of a node that trains for so many seconds, and then takes no more steps."""
    rows = samples(trained + still, **per_second)
    rows[:, 1 + INDEX["steps"]] = np.floor(speed * np.minimum(np.arange(trained + still), trained))
    return history_of(rows)


@pytest.mark.parametrize(
    ("speed", "still_s", "rate"),
    [(10.0, 9, 2.0), (10.0, 11, 0.0), (10.0, 180, 0.0), (0.05, 30, 0.05), (0.05, 90, 0.0)],
)
def test_a_rate_falls_to_nothing_when_no_step_was_taken_for_three_times_the_usual(
    speed, still_s, rate
):
    found = rates_of_newest(stopped(speed, 200, still_s, train_s=1.0), 10.0)
    assert found.steps_per_s == pytest.approx(rate, rel=0.5)
    assert found.idle_s >= still_s - 1


def test_who_has_taken_its_last_step_has_no_speed_at_once_and_no_shares_of_its_time():
    found = rates_of_newest(stopped(10.0, 200, 3, wait_s=0.01), 10.0, trains=False)
    assert (found.steps_per_s, found.shares) == (0.0, None)
