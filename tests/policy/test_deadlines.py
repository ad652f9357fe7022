"""Deadlines learnt from fetch times: laws, and how they behave over a long run."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.deadlines import FetchTimes

CEILING_S = 2.5

SECONDS = st.floats(0.0, 3600.0)
# Each step is a success after so many seconds, or None: a timeout.
HISTORIES = st.lists(st.none() | SECONDS, max_size=60)


def after(history: list[float | None], times: FetchTimes | None = None) -> FetchTimes:
    times = times or FetchTimes()
    for elapsed_s in history:
        times = times.timed_out() if elapsed_s is None else times.succeeded(elapsed_s)
    return times


def fetch(times: FetchTimes, elapsed_s: float, ceiling_s: float) -> tuple[bool, FetchTimes]:
    """Fetch from a peer that needs so long; return whether it was in time, and what is learnt."""
    if elapsed_s > times.deadline_s(ceiling_s):
        return False, times.timed_out()
    return True, times.succeeded(elapsed_s)


@given(HISTORIES, SECONDS)
def test_the_deadline_stays_between_floor_and_ceiling(history, ceiling_s):
    times = after(history)
    assert min(times.floor_s, ceiling_s) <= times.deadline_s(ceiling_s) <= ceiling_s


@given(st.integers(0, 50), SECONDS)
def test_before_the_first_success_the_ceiling_holds(timeouts, ceiling_s):
    assert after([None] * timeouts).deadline_s(ceiling_s) == ceiling_s


@given(HISTORIES, st.floats(0.2, 10.0))
def test_constant_times_are_learnt_whatever_came_before(history, elapsed_s):
    times = after([*history, *[elapsed_s] * 1_500])
    assert times.deadline_s(3600.0) == pytest.approx(elapsed_s, rel=0.01)


@given(HISTORIES, st.integers(1, 100))
def test_timeouts_in_a_row_never_shorten_the_deadline_and_reach_the_ceiling(history, timeouts):
    times = after(history)
    waits = [after([None] * count, times).deadline_s(3600.0) for count in range(timeouts + 1)]
    assert waits == sorted(waits)
    assert after([None] * 20, times).deadline_s(3600.0) == 3600.0


@given(HISTORIES, st.integers(1, 100), SECONDS)
def test_a_success_ends_the_back_off(history, timeouts, elapsed_s):
    times = after([1.0, *history]).succeeded(1.0)
    backed_off = after([None] * timeouts, times)
    assert backed_off.succeeded(elapsed_s) == times.succeeded(elapsed_s)


@given(st.floats(0.001, 0.2), st.integers(1, 200))
def test_a_peer_that_becomes_ten_times_slower_is_not_locked_out(elapsed_s, learnt):
    times = after([elapsed_s] * learnt)
    in_time = []
    for _ in range(100):
        done, times = fetch(times, 10 * elapsed_s, CEILING_S)
        in_time.append(done)
    assert all(in_time[-50:])
    assert in_time.count(False) <= 12


def test_a_peer_that_hangs_costs_little_once_it_is_known():
    times = after([0.02] * 50)
    waited_s = 0.0
    for _ in range(3):
        waited_s += times.deadline_s(CEILING_S)
        times = times.timed_out()
    assert waited_s == pytest.approx(7 * times.floor_s)


@pytest.mark.parametrize("median_s", [0.02, 0.2, 2.0])
def test_jitter_is_hardly_ever_cut(median_s):
    rng = random.Random(1)
    times, cut = FetchTimes(), 0
    for _ in range(20_000):
        done, times = fetch(times, median_s * rng.lognormvariate(0, 0.5), 1000.0)
        cut += not done
    print(f"median {median_s} s: {cut / 200:.2f} % were cut")
    assert cut < 200
    assert times.deadline_s(1000.0) < max(10 * median_s, 2 * times.floor_s)
