"""One node's process: start, signal, reap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from dpwa.errors import UserError
from dpwa.launch.output import OutputPipe

CHILD_SCRIPT = Path(__file__).with_name("child.py")


class NodeProcess:
    """A started command, in a session and process group of its own.

    The terminal's Ctrl-C does not reach it; `send` does, and everything that it has started. It
    reads nothing from standard input. On Linux it dies with the thread that made this object; what
    it has started itself does not.

    Attributes:
        name: the node's name.
        outputs: its standard output and error, by the names `stdout` and `stderr`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: Sequence[int] = (),
    ) -> None:
        """Start the command.

        Raises:
            UserError: the system cannot start another process.
        """
        self.name = name
        prepare = [sys.executable, "-I", "-S", str(CHILD_SCRIPT)]
        arguments = [str(os.getpid()), ",".join(str(core) for core in cores), *command]
        try:
            self._process = subprocess.Popen(  # noqa: S603  (running the user's command is the task)
                [*prepare, *arguments],
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"cannot start node {name}: {error.strerror}") from None
        self.outputs = {
            "stdout": OutputPipe(cast(IO[bytes], self._process.stdout)),
            "stderr": OutputPipe(cast(IO[bytes], self._process.stderr)),
        }

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all it has started; nothing if none is left."""
        if self._process.returncode is not None:
            return  # reaped: the number of the group may be another's by now
        # Some systems refuse when only the unreaped process itself is left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def has_ended(self) -> bool:
        """Tell whether the process has ended; what it has started may live on.

        The process stays unreaped, so that its number keeps naming its group, and no other.
        """
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def reap(self) -> int:
        """Wait for the end of the process; return its exit code, negative for a signal."""
        return self._process.wait()
