"""Counters of seconds are read whole, whatever the training thread turns to meanwhile."""

import pytest

from dpwa.node.training_figures import Activity, TrainingFigures


class Clock:
    """Time that stands still; at one look, something happens in another thread before that."""

    def __init__(self):
        self.time = 0.0
        self.happens = []

    def now(self):
        if self.happens:
            self.happens.pop()()
        return self.time


def test_what_begins_while_counters_are_read_is_not_counted_as_what_was_done_before():
    clock = Clock()
    figures = TrainingFigures(clock)
    figures.begin_update()
    clock.time = 1.0

    def wait():
        figures.turn_to(Activity.WAIT)
        clock.time = 5.0

    clock.happens.append(wait)
    first = figures.report()
    assert (first["train_s"], first["wait_s"]) == (1.0, 4.0)
    figures.turn_to(Activity.TRAIN)
    second = figures.report()
    assert (second["train_s"], second["wait_s"]) == (1.0, 4.0)  # no counter has fallen


def test_how_alike_steps_are_is_told_without_what_they_waited_for():
    clock = Clock()
    figures = TrainingFigures(clock)
    for seconds in (0.1, 0.3, 0.2, 0.2):
        figures.begin_update()
        clock.time += seconds
        with figures.doing(Activity.WAIT):
            clock.time += 5.0
    figures.begin_update()  # which ends the step before
    assert figures.report()["step_changes_s2"] == pytest.approx(0.2**2 + 0.1**2)
