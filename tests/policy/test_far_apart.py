"""When nodes are told that they go too far between two merges, and when not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpwa.policy.outer import FarApart

SEED = 71


def run(watch, losses, every):
    """Merge after each `every`-th loss; return what was said, by the number of the loss."""
    said = {}
    for number, loss in enumerate(losses):
        warning = watch.measured(loss)
        if warning:
            said[number] = warning
        if (number + 1) % every == 0:
            watch.merged()
    return said


def test_most_merges_that_raise_the_loss_by_far_are_told_once_with_numbers():
    watch = FarApart("noloco.period", 50)
    said = run(watch, [0.04] * 50 + [0.3, *[0.04] * 49] * 6, every=50)
    assert said == {
        150: "3 of the last 3 merges made the loss more than twice as high, the last 0.04 -> 0.3: "
        "in the 50 steps of noloco.period nodes go far from each other, as on private shards of "
        "data; recommended is noloco.period 5"
    }


def test_two_of_three_are_enough_and_one_is_not():
    quiet, loud = [0.04] * 10, [0.3, *[0.04] * 9]
    assert list(run(FarApart("x", 10), [*quiet, *quiet, *loud, *loud], 10)) == [30]
    assert run(FarApart("x", 10), [*quiet, *quiet, *loud, *quiet, *quiet], 10) == {}
    assert run(FarApart("x", 10), [*quiet, *loud, *loud], 10) == {}  # too few


@pytest.mark.parametrize("period", [1, 2, 4, 5, 9])
def test_a_period_of_a_few_steps_is_never_called_too_long(period):
    assert run(FarApart("x", period), [0.04, 0.3] * 50, period) == {}


def test_noise_alone_says_nothing():
    rng = np.random.default_rng(SEED)
    warned = [
        bool(run(FarApart("x", 10), 0.1 * rng.lognormal(0.0, 0.4, 300), 10)) for _ in range(200)
    ]
    assert sum(warned) <= 2


def test_losses_that_were_not_measured_or_are_not_finite_do_not_count():
    watch = FarApart("x", 10)
    losses = [0.04] * 10 + [None, math.nan, 0.3, *[0.04] * 7] * 3
    assert list(run(watch, losses, 10)) == [32]
