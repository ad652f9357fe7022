"""Stops a run with signals that escalate as time passes.

A callback that hangs on a full pipe must not prevent the stop. Python repeats an interrupted write.
So only an exception in the signal handler ends the callback.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from dpwa.clock import Clock

INTERRUPT_GRACE_S = 5.0
TERMINATE_GRACE_S = 2.0
STEPS: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, INTERRUPT_GRACE_S),
    (signal.SIGTERM, TERMINATE_GRACE_S),
    (signal.SIGKILL, math.inf),
)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # nodes decide what they mean
CALLBACK_PATIENCE_S = 1.0  # maximum duration of a callback after a request to stop
KILL_PATIENCE_S = 0.2  # maximum duration of a callback after a second request to stop
WATCH_INTERVAL_S = 0.1


class StopLadder:
    """Schedule of stop signals: the received signal, SIGTERM after 5 s, SIGKILL 2 s after that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = STEPS
        self._next_at = -math.inf
        self.stopping = False
        self._killing = False
        self._passed_on: deque[signal.Signals] = deque()

    @property
    def patience_s(self) -> float:
        """The maximum seconds that a callback may run. Infinite before a request to stop."""
        if not self.stopping:
            return math.inf
        return KILL_PATIENCE_S if self._killing else CALLBACK_PATIENCE_S

    def came(self, number: signal.Signals) -> None:
        """Record a received signal. A signal handler may call this at any moment.

        A second request to stop changes nothing, except that SIGINT makes SIGKILL due at once.
        """
        if number in PASSED_ON:
            if number not in self._passed_on:
                self._passed_on.append(number)
            return
        if self.stopping:
            self._killing |= number == signal.SIGINT
            return
        (_, grace_s), *higher = STEPS
        if number == signal.SIGTERM:
            grace_s += higher.pop(0)[1]
        self._steps = ((number, grace_s), *higher)
        self.stopping = True  # set last, because `next_signal` then escalates

    def next_signal(self) -> signal.Signals | None:
        """Return the signal to send now, or `None`. Each signal is returned once."""
        if self._passed_on:
            return self._passed_on.popleft()
        if not self.stopping or not self._steps:
            return None
        if self._killing:
            self._steps = self._steps[-1:]
        elif self._clock.now() < self._next_at:
            return None
        (number, grace_s), *higher = self._steps
        self._steps = tuple(higher)
        self._next_at = self._clock.now() + grace_s
        return number


@contextmanager
def stop_on_signals(ladder: StopLadder, busy_s: Callable[[], float]) -> Iterator[None]:
    """Record in `ladder` the signals that this process receives, until the block ends.

    A callback that has run longer (`busy_s`) than the ladder's patience gets a KeyboardInterrupt.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ladder.came(signal.Signals(number))
        if busy_s() > ladder.patience_s:
            raise KeyboardInterrupt

    with handled_by(handle):
        is_ours = signal.getsignal(signal.SIGTERM) is handle
        with _watched_patience(ladder, busy_s) if is_ours else nullcontext():
            yield


@contextmanager
def interrupted_by_signals() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt on signals that would end this process, so that cleanup runs.

    Yields a function. After this function was called, signals no longer interrupt.
    """
    is_over = False

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number in STOP_SIGNALS and not is_over:
            raise KeyboardInterrupt

    def stop_interrupting() -> None:
        nonlocal is_over
        is_over = True

    with handled_by(handle):
        yield stop_interrupting


@contextmanager
def handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handle` for each signal in `STOP_SIGNALS` and `PASSED_ON`, until the block ends.

    A signal that the process ignores (`nohup`, a background job) stays ignored. Only the main
    thread can receive signals, so this function does nothing in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, *PASSED_ON)}
    ours = [number for number, was in previous.items() if was not in (None, signal.SIG_IGN)]
    try:
        for number in ours:
            signal.signal(number, handle)
        yield
    finally:
        for number in ours:
            signal.signal(number, previous[number])


@contextmanager
def _watched_patience(ladder: StopLadder, busy_s: Callable[[], float]) -> Iterator[None]:
    """Call the handler of SIGTERM again if a callback takes too long after the signal."""
    main_thread = threading.get_ident()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_INTERVAL_S):
            if busy_s() > ladder.patience_s:
                signal.pthread_kill(main_thread, signal.SIGTERM)

    watcher = threading.Thread(target=watch, name="dpwa-launch-patience", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()  # before the handlers are removed, because its signal would end this process
