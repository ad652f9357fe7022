"""Bounds of seconds: a busy machine stretches them, a slow product does not."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from support.nodes import eventually
from support.times import at_most

RIVALS = 6
BUSY = "import time; end = time.thread_time() + {}\nwhile time.thread_time() < end: pass"


@contextmanager
def rivals_on_one_processor():
    """Have this process, and what it starts, share one processor with others that never rest."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    rivals = []
    try:
        rivals += [
            subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            for _ in range(RIVALS)
        ]
        yield
    finally:
        os.sched_setaffinity(0, processors)
        for rival in rivals:
            rival.kill()
            rival.wait()


def busy_for(seconds):
    """Compute for so many seconds of a processor; return how long it took."""
    began, end = time.monotonic(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.monotonic() - began


def test_who_waits_for_a_message_is_not_excused_however_busy_the_machine_is():
    with rivals_on_one_processor():
        began = time.monotonic()
        threading.Event().wait(1.0)
        assert time.monotonic() - began > at_most(0.05)


def test_who_computes_for_too_long_is_not_excused():
    assert busy_for(0.4) > at_most(0.05)
