"""What nodes that run print, and what becomes of them: on the terminal, and in a file of each."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dpwa.errors import UserError
from dpwa.lifecycle import Closeable

if TYPE_CHECKING:
    from dpwa.launch import Restart

WRITE_PATIENCE_MS = 500  # for a reader that is slow, when everything else is over
COLOURS = (36, 33, 35, 32, 34, 31)  # of the ANSI terminal: cyan, yellow, magenta, green, blue, red


class NodeConsole:
    """Shows what the nodes print, each line after the node's name, and what becomes of them.

    The names are coloured where the stream is a terminal that can, unless NO_COLOR is set.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for stream in self._streams.values():
            if isinstance(stream, io.TextIOWrapper):  # nodes may print what this locale cannot
                stream.reconfigure(errors="backslashreplace")
        wants_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = {n: s.isatty() and wants_colour for n, s in self._streams.items()}
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._width = max(map(len, names))
        self._stopping = False

    def show_line(self, node: str, stream: str, line: str) -> None:
        self._write(stream, f"{self._prefix(node, stream)} {line}")

    def show_exit(self, node: str, code: int) -> None:
        """Report a node that failed, unless it was asked to stop."""
        if code and not self._stopping:
            self.note(f"node {node} failed: {exit_reason(code)}")

    def show_restart(self, restart: Restart) -> None:
        self.note(restart_notice(restart))

    def show_signal(self, number: signal.Signals, nodes: Sequence[str]) -> None:
        from dpwa.launch.stopping import PASSED_ON

        if number in PASSED_ON:
            self.note(f"passing {number.name} on to {', '.join(nodes)}")
            return
        self._stopping = True
        hint = " (Ctrl-C again kills)" if number == signal.SIGINT else ""
        self.note(f"stopping {', '.join(nodes)} with {number.name}{hint}")

    def note(self, text: str) -> None:
        self._write("stderr", f"dpwa launch: {text}")

    def give_up_unread_streams(self) -> None:
        """Discard what is still to be written to a stream whose reader has left, or is stuck."""
        for stream in self._streams.values():
            if not _is_read(stream):
                _discard(stream)

    def _prefix(self, node: str, stream: str) -> str:
        prefix = f"{node:<{self._width}} |"
        if not self._coloured[stream]:
            return prefix
        return f"\x1b[{COLOURS[self._ranks[node] % len(COLOURS)]}m{prefix}\x1b[0m"

    def _write(self, stream: str, line: str) -> None:
        try:
            self._streams[stream].write(line + "\n")
            self._streams[stream].flush()
        except KeyboardInterrupt:  # it blocked, and nobody wants to wait any longer
            _discard(self._streams[stream])
            raise
        except OSError:
            if not self._stopping:
                raise
            _discard(self._streams[stream])


def _is_read(stream: TextIO) -> bool:
    poll = select.poll()
    try:
        poll.register(stream, select.POLLOUT)
    except OSError:  # not a stream of the system
        return True
    return [events for _, events in poll.poll(WRITE_PATIENCE_MS)] == [select.POLLOUT]


def _discard(stream: TextIO) -> None:
    """Point a stream nowhere: also the interpreter's last flush must neither fail nor block."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"ended by signal {-code}"


def restart_notice(restart: Restart) -> str:
    return (
        f"node {restart.node} failed: {exit_reason(restart.code)}; starting it again in "
        f"{restart.pause_s:g} s (restart {restart.number} of {restart.most})"
    )


class NodeLogs(Closeable):
    """Appends lines to DIR/NAME.log; a line is in the file when `write` returns.

    A file that cannot be written any more, as on a full disk, stops no node: it is told of once.
    Without a folder nothing is written.
    """

    def __init__(
        self, folder: Path | None, names: Sequence[str], note: Callable[[str], None]
    ) -> None:
        self._note = note
        self._files: dict[str, TextIO] = {}
        if folder is None:
            return
        path = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                path = folder / f"{name}.log"
                self._files[name] = path.open(
                    "a", encoding="utf-8", errors="backslashreplace", buffering=1
                )
        except OSError as error:
            self.close()
            raise UserError(
                f"cannot write {path}: {error.strerror} (--log-dir) [DPWA-E077]"
            ) from None

    def write(self, node: str, line: str) -> None:
        file = self._files.get(node)
        if file is None:
            return
        try:
            file.write(line + "\n")
        except OSError as error:
            del self._files[node]
            _close(file)
            self._note(f"{file.name} is not written any more: {error.strerror}")

    def close(self) -> None:
        for file in self._files.values():
            _close(file)
        self._files.clear()


def _close(file: TextIO) -> None:
    with contextlib.suppress(OSError):  # what is left to be written is what could not be written
        file.close()
