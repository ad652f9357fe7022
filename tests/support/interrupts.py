"""Ctrl-C: at a chosen time, at random, or at each moment at which Python looks at signals."""

import functools
import signal
import sys
import threading
from contextlib import contextmanager
from dis import get_instructions
from pathlib import Path

import pytest

OUTSIDE = {"torch", "numpy", "msgpack", "_pytest", "pluggy"}
TESTS = Path(__file__).parent.parent


def interrupted(work, seconds):
    """Do work, and interrupt the main thread so many seconds from now: it must go on till then.

    It is done again each second, as a user does: Python drops what is raised in a destructor.
    """
    main, ended = threading.main_thread().ident, threading.Event()

    def interrupt():
        wait_s = seconds
        while not ended.wait(wait_s):
            signal.pthread_kill(main, signal.SIGINT)
            wait_s = 1.0

    thread = threading.Thread(target=interrupt)

    def begin():
        thread.start()
        work()

    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
    finally:
        ended.set()
        thread.join()


@contextmanager
def alarms():
    """Have SIGALRM do what SIGINT does, so that `setitimer` interrupts without another thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def interrupted_at_random(work, rng, most_s):
    """Do work once, and interrupt it within this time; return whether that was before its end."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, most_s))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True
    return False


class Moments:
    """Interrupts work at the moments at which CPython may run the handler of a signal.

    It looks whether one is due when a function begins, after a call, and at a jump back; and in C,
    where something waits, before it has done what it was called for:

    - `enter`: a function of Python begins;
    - `return`: it returns, and its caller looks (3.10 does; with 3.11 only if C has called it);
    - `called`: a function of C has returned, and the value is dropped;
    - `waits`: a function of C that waits, or asks the system, has not done anything yet;
    - `loop`: the jump back at the end of a loop.

    Between these an exception cannot come from a signal. So `with lock`, whose `__enter__` and
    `__exit__` are of C, is entered and left with nothing in between, and plain assignments one
    after the other are one step.

    The handler is called that is set at the moment: `uninterrupted` puts it off. Left out is the
    code of torch, numpy and the tests.
    """

    WAITING = frozenset(
        {"acquire", "get", "sleep", "flock", "poll", "eventfd_write", "write", "read", "fsync"}
    )

    def __init__(self):
        self.seen = {}  # in the order they came first
        self._wanted = None
        self.was_there = False
        self._last = {}

    def watch(self, work):
        self._wanted = None
        return self._traced(work)

    def interrupt(self, moment, work):
        """Do work, and interrupt it at a moment, the first time; return whether it was there."""
        self._wanted, self.was_there = moment, False
        try:
            self._traced(work)
        except KeyboardInterrupt:
            assert self.was_there
        return self.was_there

    def _traced(self, work):
        self._last.clear()
        hook, sys.unraisablehook = sys.unraisablehook, self._dropped
        before = sys.gettrace(), sys.getprofile()  # those of coverage, if it looks
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
            sys.unraisablehook = hook

    def _dropped(self, dropped):
        assert dropped.exc_type is KeyboardInterrupt, dropped

    def _at(self, frame, kind, what=""):
        moment = frame.f_code, kind, frame.f_lasti, what
        if self._wanted is None:
            self.seen.setdefault(moment)
        elif moment == self._wanted and not self.was_there:
            self.was_there = True
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

    def _trace(self, frame, event, arg):
        code = frame.f_code
        if _is_outside(code.co_filename):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, bool(_jumps_back(frame.f_code))
        self._at(frame, "enter")
        return self._local

    def _local(self, frame, event, arg):
        if event == "return":
            self._at(frame, "return")
        elif event == "opcode":
            before, self._last[frame] = self._last.get(frame), frame.f_lasti
            if before in _jumps_back(frame.f_code):
                self._at(frame, "loop")
        return self._local

    def _profile(self, frame, event, function):
        if event not in ("c_call", "c_return") or _is_outside(frame.f_code.co_filename):
            return
        name = function.__name__
        if event == "c_return":
            self._at(frame, "called", name)
        elif name in self.WAITING:
            self._at(frame, "waits", name)


@functools.cache
def _is_outside(file):
    path = Path(file)
    return path.is_relative_to(TESTS) or not OUTSIDE.isdisjoint(path.parts)


@functools.cache
def _jumps_back(code):
    """Offsets of the instructions that jump back, and look at signals."""
    return frozenset(
        each.offset
        for each in get_instructions(code)
        if "JUMP" in each.opname
        and "NO_INTERRUPT" not in each.opname
        and isinstance(each.argval, int)
        and each.argval <= each.offset
    )


def described(moment):
    code, kind, at, what = moment
    lines = [line for start, stop, line in code.co_lines() if start <= at < stop]
    where = f"{Path(code.co_filename).name}:{lines[0] if lines else code.co_firstlineno}"
    return f"{kind} {what} in {code.co_name} ({where})"
