import math
import random
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.interrupts import Moments

from dpwa.errors import UserError
from dpwa.policy.leaders import RunningLoss

SEED = 5
numbers = st.floats(allow_nan=False, allow_infinity=False)


def running(window, losses):
    running_loss = RunningLoss(window)
    for loss in losses:
        running_loss.add_loss(loss)
    return running_loss


@pytest.mark.parametrize("added", [5.0, math.inf])
def test_an_interrupt_leaves_the_mean_as_it_is_before_or_after(added):
    """Also when the oldest one, here the only one that is not finite, goes at that moment."""
    losses, moments = [math.inf, 1.0, 3.0], Moments()
    loss = running(3, losses)
    moments.watch(lambda: loss.add_loss(added))
    means = {running(3, losses).mean, loss.mean}
    for moment in moments.seen:
        loss = running(3, losses)
        assert moments.interrupt(moment, lambda loss=loss: loss.add_loss(added))
        assert loss.mean in means
        for each in losses:
            loss.add_loss(each)
        assert loss.mean == math.inf
        loss.add_loss(2.0)
        assert loss.mean == 2.0


def test_nothing_measured_is_no_mean():
    assert RunningLoss(4).mean is None
    assert running(4, [None, None]).mean is None


def test_a_half_filled_window_is_divided_by_what_is_there():
    assert running(100, [3.0]).mean == 3.0
    assert running(100, [3.0, 1.0]).mean == 2.0


def test_a_slow_worker_does_not_look_better_than_a_fast_one():
    slow, fast = running(100, [2.0] * 10), running(100, [1.9] * 1_000)
    assert fast.mean < slow.mean


def test_a_loss_that_was_not_measured_takes_no_place_in_the_window():
    assert running(2, [1.0, None, None, 3.0]).mean == 2.0


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_makes_the_mean_infinite_while_it_is_in_the_window(loss):
    running_loss = running(3, [1.0, loss])
    means = [running_loss.mean]
    for later in (2.0, 3.0, 4.0):
        running_loss.add_loss(later)
        means.append(running_loss.mean)
    assert means == [math.inf, math.inf, math.inf, 3.0]


@given(st.integers(1, 5), st.lists(st.none() | numbers))
@example(2, [5e-324, 1.7e308, 5e-324])
@example(1, [-1.7e308, 5e-324])
def test_the_mean_is_the_exact_one_correctly_rounded(window, losses):
    last = [Fraction(loss) for loss in losses if loss is not None][-window:]
    expected = float(sum(last) / len(last)) if last else None
    assert running(window, losses).mean == expected


def test_a_hundred_thousand_losses_leave_no_drift():
    print(f"seed {SEED}")
    rng, window = random.Random(SEED), 64
    running_loss, last = RunningLoss(window), []
    for step in range(100_000):
        loss = rng.random() * (1e12 if step % 1_000 == 0 else 1.0)  # spikes that a plain sum keeps
        running_loss.add_loss(loss)
        if step >= 100_000 - window:
            last.append(loss)
    assert running_loss.mean == float(sum(map(Fraction, last)) / window)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_must_hold_at_least_one_loss(window):
    with pytest.raises(UserError, match=f"is {window}, but must be at least 1"):
        RunningLoss(window)
