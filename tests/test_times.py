"""Bounds of seconds: a busy machine stretches them, a slow product does not."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from support import times
from support.nodes import eventually
from support.times import Bound

RIVALS = 6
BUSY = "import time; end = time.thread_time() + {}\nwhile time.thread_time() < end: pass"


@pytest.fixture(autouse=True)
def _a_machine_that_may_be_busy(monkeypatch):
    monkeypatch.setattr(times, "_is_quiet", False)


@contextmanager
def rivals_on_one_processor():
    """Have this process, and what it starts, share one processor with strangers that never rest."""
    processors = os.sched_getaffinity(0)
    rival = f'{sys.executable} -S -c "while True: pass" >/dev/null & echo $!'
    pids = []
    os.sched_setaffinity(0, {min(processors)})
    try:
        for _ in range(RIVALS):  # no children of the tests, whose waiting would count
            pids.append(int(subprocess.check_output(["sh", "-c", rival])))
        yield
    finally:
        os.sched_setaffinity(0, processors)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def busy_for(seconds):
    """Compute for so many seconds of a processor; return how long it took."""
    began, end = time.monotonic(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.monotonic() - began


def is_over_after(work, seconds):
    """Whether a bound of .1 s does not hold for that work, unless the tests start something."""
    bound = Bound(0.1)
    work(seconds)
    return bound.is_over


def test_who_waits_for_a_message_is_not_excused_however_busy_the_machine_is():
    with rivals_on_one_processor():
        eventually(lambda: is_over_after(threading.Event().wait, 0.7), timeout_s=5.0)


def test_who_computes_for_too_long_is_not_excused():
    eventually(lambda: is_over_after(busy_for, 0.4), timeout_s=5.0)


def busy_in_a_process_for(seconds):
    began = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", BUSY.format(seconds)], check=True)
    return time.monotonic() - began


@pytest.mark.parametrize("busy", [busy_for, busy_in_a_process_for])
def test_who_is_kept_from_the_processor_is_excused_for_so_long(busy):
    def is_excused():
        bound = Bound(1.0)
        return busy(0.25) > 1.0 and not bound.is_over

    with rivals_on_one_processor():
        eventually(
            is_excused
        )  # not where more than rivals kept it waiting, such as another machine


def test_what_was_before_one_looked_does_not_count(monkeypatch):
    monkeypatch.setattr(times, "_watch", None)  # that of all tests comes back afterwards
    busy_for(0.5)
    with times.watched():
        lags_s = [times.lag_s() for _ in range(3)]
    assert lags_s == sorted(lags_s)
    assert 0.0 <= lags_s[0] < 0.5


def test_what_is_promised_to_come_in_time_and_does_not_is_told():
    with pytest.raises(AssertionError, match="still not so"):
        eventually(lambda: False, timeout_s=0.1)
