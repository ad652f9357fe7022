"""Time as far as a process was awake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.clock import AwakeClock
from dpwa.virtual_network import VirtualClock

MOST_S = 0.5
ASLEEP_AFTER_S = 2.0


@pytest.fixture
def time():
    return VirtualClock(100.0)


@pytest.fixture
def awake(time):
    return AwakeClock(time, MOST_S, ASLEEP_AFTER_S)


def pass_time(time, seconds):
    time.move_to(time.now() + seconds)


def test_who_looks_often_sees_all_of_the_time(time, awake):
    for _ in range(40):
        pass_time(time, 0.25)
        assert not awake.look()
    assert awake.now() == time.now() == 110.0


def test_of_a_pause_a_part_passes_whether_anybody_looks_or_asks(time, awake):
    pass_time(time, 1.5)
    assert awake.now() == 100.5
    assert not awake.look()
    assert awake.now() == 100.5
    pass_time(time, 0.25)
    assert awake.now() == 100.75
    assert awake.woke_at == float("-inf")


def test_a_long_pause_is_sleep_and_is_told_once(time, awake):
    pass_time(time, 60.0)
    assert awake.look()
    assert awake.woke_at == 100.5
    assert not awake.look()


@given(st.lists(st.tuples(st.sampled_from(["look", "ask"]), st.floats(0.0, 5.0)), max_size=30))
def test_it_never_goes_back_nor_faster_than_time(steps):
    time = VirtualClock(7.0)
    awake, before, at = AwakeClock(time, MOST_S, ASLEEP_AFTER_S), 7.0, 7.0
    for step, seconds in steps:
        pass_time(time, seconds)
        if step == "look":
            awake.look()
        now = awake.now()
        assert 0.0 <= now - before <= time.now() - at + 1e-9
        before, at = now, time.now()
