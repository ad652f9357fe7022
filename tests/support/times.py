"""Bounds of seconds, which a busy machine stretches by as long as it kept a test waiting.

A process of its own reads how long the threads of the tests, and of all processes that they have
started, were ready to run while others had the processors. Nothing else is excused.
"""

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

HANGS_AFTER_S = 60.0  # what promises no seconds, but must come or end
PROCESS_HANGS_AFTER_S = 180.0  # likewise, if it imports torch first

PERIOD_S = 0.2  # processes that live shorter are not seen
PATH_OF_THREADS = 3  # so many hand on to each other what a test waits for

_is_quiet = False
_watch = None
_lag_before_s = 0.0
_one_asks = threading.Lock()


def expect_a_quiet_machine():
    """From now on take every bound as it stands."""
    global _is_quiet
    _is_quiet = True


def at_most(seconds):
    """How long something of this test may take that takes no more than so many seconds alone."""
    return seconds if _is_quiet else seconds + lag_s() - _lag_before_s


class SetClock:
    """Time that stands still until a test lets it pass."""

    def __init__(self, now=0.0):
        self.time = now

    def now(self):
        return self.time


class Bound:
    """So many seconds from now on."""

    def __init__(self, seconds):
        self._seconds, self._lag_s, self._began = seconds, lag_s(), time.monotonic()

    @property
    def is_over(self):
        """Whether it took longer, and not because the machine is busy."""
        over_s = time.monotonic() - self._began - self._seconds
        return over_s > 0 and (_is_quiet or over_s > lag_s() - self._lag_s)


def lag_s():
    """How long the machine has kept the tests of this process waiting for a processor until now."""
    if _watch is None:
        return 0.0
    with _one_asks:
        while select.select([_watch.stdout], [], [], 0.0)[0]:
            _watch.stdout.readline()  # of a question that was interrupted
        _watch.stdin.write(b"?")
        return float(_watch.stdout.readline())


def begin_a_test():
    """Excuse from now on nothing that was before."""
    global _lag_before_s
    _lag_before_s = lag_s()


@contextmanager
def watched():
    """Have the lag of this process measured."""
    global _watch
    command = [sys.executable, "-S", "-E", __file__, str(os.getpid())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, start_new_session=True, **pipes) as _watch:
        yield
        _watch.stdin.close()


def _threads(pid):
    """How long each thread of a process, and of all that it has started, has run and waited."""
    found, pids = {}, [pid]
    for pid in pids:
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                about = f"/proc/{pid}/task/{thread}"
                with suppress(OSError):
                    ran, waited, _ = _read(f"{about}/schedstat").split()
                    found[thread] = [int(ran) / 1e9, int(waited) / 1e9]
                with suppress(OSError):
                    pids += [int(child) for child in _read(f"{about}/children").split()]
    found.pop(str(os.getpid()), None)
    return found


def _read(path):
    """What stands in a short file; `open` would take as long again, hundreds of times a second."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _measure(pid):
    """Answer each question with the lag until now, until nobody can ask any more."""
    lag_s, before, then = 0.0, _threads(pid), time.monotonic()
    while asked := os.read(0, 1) if select.select([0], [], [], PERIOD_S)[0] else b".":
        threads, now = _threads(pid), time.monotonic()
        was = {thread: before.get(thread, (0.0, 0.0)) for thread in threads}
        ran_s = [threads[thread][0] - was[thread][0] for thread in threads]
        waited_s = [threads[thread][1] - was[thread][1] for thread in threads]
        most_s = now - then - max(ran_s, default=0.0)
        # Where Linux does not tell, all may have been lag.
        path_s = sum(sorted(waited_s)[-PATH_OF_THREADS:]) if threads else most_s
        lag_s += max(0.0, min(path_s, most_s))
        before, then = threads, now
        if asked == b"?":
            os.write(1, b"%f\n" % lag_s)


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
