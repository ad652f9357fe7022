"""When to stop, and how hard: a ladder of signals, climbed as time passes."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dpwa.clock import Clock

INTERRUPT_GRACE_S = 5.0
TERMINATE_GRACE_S = 2.0
STEPS: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, INTERRUPT_GRACE_S),
    (signal.SIGTERM, TERMINATE_GRACE_S),
    (signal.SIGKILL, math.inf),
)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopLadder:
    """Decides which signal is due: none, SIGINT, SIGTERM 5 s later, SIGKILL 2 s after that.

    `stop` and `interrupt` only set flags, and so may be called by a signal handler at any moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = STEPS
        self._next_at = -math.inf
        self._stopping = False
        self._killing = False

    @property
    def stopping(self) -> bool:
        """Tell whether anything has asked for a stop."""
        return self._stopping

    def stop(self) -> None:
        """Begin to climb; asking again changes nothing."""
        self._stopping = True

    def interrupt(self) -> None:
        """Begin to climb; asking again goes straight to SIGKILL."""
        self._killing = self._stopping
        self._stopping = True

    def next_signal(self) -> signal.Signals | None:
        """Return the signal to send now, or `None`; each is returned once."""
        if not self._stopping or not self._steps:
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
def stop_on_signals(ladder: StopLadder) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP to this process climb the ladder, until the block ends.

    A signal that the process ignores (`nohup`, a background job) stays ignored. Only the main
    thread can receive signals: in any other this does nothing.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number == signal.SIGINT:
            ladder.interrupt()
        else:
            ladder.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    ours = [number for number, was in previous.items() if was not in (None, signal.SIG_IGN)]
    try:
        for number in ours:
            signal.signal(number, handle)
        yield
    finally:
        for number in ours:
            signal.signal(number, previous[number])
