"""Time as far as a process was awake."""

import importlib.util
import time as real_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpwa.clock
from dpwa.clock import AwakeClock
from dpwa.virtual_network import VirtualClock

MAX_WAIT_S = 0.5
ASLEEP_AFTER_S = 2.0


@pytest.fixture
def time():
    return VirtualClock(100.0)


@pytest.fixture
def awake(time):
    return AwakeClock(time, MAX_WAIT_S, ASLEEP_AFTER_S)


def pass_time(time, seconds):
    time.move_to(time.now() + seconds)


def test_who_looks_often_sees_all_of_the_time(time, awake):
    for _ in range(40):
        pass_time(time, 0.25)
        assert not awake.note_awake()
    assert awake.now() == time.now() == 110.0


def test_of_a_pause_a_part_passes_whether_anybody_looks_or_asks(time, awake):
    pass_time(time, 1.5)
    assert awake.now() == 100.5
    assert not awake.note_awake()
    assert awake.now() == 100.5
    pass_time(time, 0.25)
    assert awake.now() == 100.75
    assert awake.woke_at == float("-inf")


def test_a_long_pause_is_sleep_and_is_told_once(time, awake):
    pass_time(time, 60.0)
    assert awake.note_awake()
    assert awake.woke_at == 100.5
    assert not awake.note_awake()


@given(st.lists(st.tuples(st.sampled_from(["look", "ask"]), st.floats(0.0, 5.0)), max_size=30))
def test_it_never_goes_back_nor_faster_than_time(steps):
    time = VirtualClock(7.0)
    awake, before, at = AwakeClock(time, MAX_WAIT_S, ASLEEP_AFTER_S), 7.0, 7.0
    for step, seconds in steps:
        pass_time(time, seconds)
        if step == "look":
            awake.note_awake()
        now = awake.now()
        assert 0.0 <= now - before <= time.now() - at + 1e-9
        before, at = now, time.now()


def loaded_where(monkeypatch, **functions):
    """The module `dpwa.clock`, loaded anew where `time` has these functions."""
    for name, function in functions.items():
        if function is None:
            monkeypatch.delattr(real_time, name, raising=False)
        else:
            monkeypatch.setattr(real_time, name, function, raising=False)
    spec = importlib.util.spec_from_file_location("clock_again", dpwa.clock.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_machine_that_was_suspended_was_asleep(monkeypatch):
    """Its monotonic clock stands still meanwhile; that of its boot does not."""
    passed = {7: 100.0}
    module = loaded_where(monkeypatch, CLOCK_BOOTTIME=7, clock_gettime=passed.__getitem__)
    monkeypatch.setattr(real_time, "monotonic", lambda: 5.0)
    awake = module.AwakeClock(module.SystemClock(), MAX_WAIT_S, ASLEEP_AFTER_S)
    assert not awake.note_awake()
    passed[7] += 60.0
    assert awake.note_awake()
    assert awake.woke_at == 100.5


def test_where_there_is_no_such_clock_the_monotonic_one_will_do(monkeypatch):
    module = loaded_where(monkeypatch, CLOCK_BOOTTIME=None)
    before = real_time.monotonic()
    assert before <= module.SystemClock().now() <= real_time.monotonic()
