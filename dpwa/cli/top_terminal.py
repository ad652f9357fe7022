"""The terminal of `dpwa top`. `Terminal` reads single keys and signals, without echo."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
_UNKNOWN_SEQUENCE = re.compile(rb"\x1b[\[O][0-9;]*[@-~]")
_BEGUN_SEQUENCE = re.compile(rb"\x1b([\[O][0-9;]*)?")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOTED = (*_ENDS, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
MAX_BYTES = 4096  # of one read


def keys_of(typed: bytes) -> tuple[list[str], bytes]:
    """Return the pressed keys, and the bytes of an escape sequence that is not complete yet."""
    keys: list[str] = []
    while typed:
        if _BEGUN_SEQUENCE.fullmatch(typed):
            return keys, typed
        match = _UNKNOWN_SEQUENCE.match(typed)
        if match:
            if match.group() in SEQUENCES:
                keys.append(SEQUENCES[match.group()])
            typed = typed[match.end() :]
            continue
        keys.append("escape" if typed[:1] == b"\x1b" else chr(typed[0]))
        typed = typed[1:]
    return keys, b""


class Terminal:
    """Redraws a screen in place, and reads keys and signals. Make it with `open_terminal`."""

    def __init__(self, console: Console, wake: int) -> None:
        self._console = console
        self._wake = wake  # read end of a pipe that receives the numbers of signals
        self._input = sys.stdin.fileno() if _has_keys() else None
        self._before: list[Any] | None = None
        self._live: Live | None = None
        self._typed = b""
        self.ended_by: signal.Signals | None = None

    def begin(self) -> None:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input, termios.TCSADRAIN)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stderr=False
        )
        self._live.start()

    def end(self) -> None:
        live, self._live = self._live, None
        before, self._before = self._before, None
        try:
            if live is not None:
                live.stop()
        finally:
            if before is not None and self._input is not None:
                with suppress(termios.error):  # the terminal is closed
                    termios.tcsetattr(self._input, termios.TCSADRAIN, before)

    def show(self, screen: RenderableType) -> None:
        if self._live is not None:
            self._live.update(screen, refresh=True)

    def keys(self, timeout_s: float) -> list[str]:
        """Wait for keys or a signal, at most `timeout_s` seconds. Return the pressed keys."""
        sources = [self._wake] if self._input is None else [self._wake, self._input]
        ready, _, _ = select.select(sources, [], [], max(timeout_s, 0.0))
        if self._wake in ready:
            for number in os.read(self._wake, MAX_BYTES):
                self._take(signal.Signals(number))
        if self._input not in ready:
            keys, self._typed = (["escape"] if self._typed == b"\x1b" else []), b""
            return keys
        try:
            typed = os.read(self._input, MAX_BYTES)
        except OSError:
            typed = b""
        if not typed:  # the terminal is closed
            self.ended_by = self.ended_by or signal.SIGHUP
        keys, self._typed = keys_of(self._typed + typed)
        return keys

    def _take(self, number: signal.Signals) -> None:
        if number in _ENDS:
            self.ended_by = self.ended_by or number
        elif number is signal.SIGTSTP:
            self._pause()
        elif number is signal.SIGCONT:  # also after SIGSTOP, which no process can handle
            self.end()
            self.begin()

    def _pause(self) -> None:
        """Suspend this process after Ctrl-Z, until the shell sends SIGCONT."""
        self.end()
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, previous)
        self.begin()


@contextmanager
def open_terminal(console: Console) -> Iterator[Terminal]:
    """Yield the terminal, and restore its mode after the block. Signals do not interrupt the block.

    If a signal other than SIGINT ended the block, this function raises that signal again.
    """
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, _note) for number in _NOTED}
    woken_before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    terminal = Terminal(console, wake)
    try:
        terminal.begin()
        yield terminal
    finally:
        try:
            terminal.end()
        finally:
            signal.set_wakeup_fd(woken_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(woken)
    if terminal.ended_by not in (None, signal.SIGINT):
        signal.raise_signal(terminal.ended_by)


def _note(number: int, frame: object) -> None:
    """Ignore a signal. Python writes the signal's number to the pipe of `set_wakeup_fd`."""


def _has_keys() -> bool:
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # closed by the shell: `<&-`
        return False
