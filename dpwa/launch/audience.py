"""The caller's callbacks, and how long they keep the nodes waiting."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dpwa.clock import Clock
from dpwa.launch.restarts import Restart

OnLine = Callable[[str, str, str], None]
OnExit = Callable[[str, int], None]
OnSignal = Callable[[signal.Signals, Sequence[str]], None]
OnRestart = Callable[[Restart], None]


class Audience:
    """Those who are told what the nodes print and what becomes of them; until muted."""

    def __init__(
        self,
        on_line: OnLine,
        on_exit: OnExit | None,
        on_signal: OnSignal | None,
        on_restart: OnRestart | None,
        clock: Clock,
    ) -> None:
        self._on_line = on_line
        self._on_exit = on_exit
        self._on_signal = on_signal
        self._on_restart = on_restart
        self._clock = clock
        self._muted = False
        self._busy_since: float | None = None

    def mute(self) -> None:
        """Tell nothing from now on."""
        self._muted = True

    def busy_s(self) -> float:
        """Return for how many seconds the present callback has been running; 0 if none is.

        Signal handlers and other threads may ask at any moment.
        """
        since = self._busy_since
        return 0.0 if since is None else self._clock.now() - since

    def tell_lines(self, node: str, stream: str, lines: Sequence[str]) -> None:
        """Pass on what a node has printed."""
        for line in lines:
            if not self._muted:
                with self._busy():
                    self._on_line(node, stream, line)

    def tell_exit(self, node: str, code: int) -> None:
        """Report that a node has ended for good."""
        if self._on_exit and not self._muted:
            with self._busy():
                self._on_exit(node, code)

    def tell_restart(self, restart: Restart) -> None:
        """Report that a node has failed, and is to be started again."""
        if self._on_restart and not self._muted:
            with self._busy():
                self._on_restart(restart)

    def tell_signal(self, number: signal.Signals, nodes: Sequence[str]) -> None:
        """Report that a signal was sent to nodes."""
        if self._on_signal and not self._muted:
            with self._busy():
                self._on_signal(number, nodes)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._busy_since = self._clock.now()
        try:
            yield
        finally:
            self._busy_since = None
