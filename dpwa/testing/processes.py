"""Programs as processes of their own, which die or stand still at chosen moments."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dpwa.errors import UserError
from dpwa.lifecycle import Closeable
from dpwa.testing.faults import VARIABLE, FaultPlan

LONGEST_S = 30.0

_LOOK_EVERY_S = 0.005


class FaultyProcess(Closeable):
    """A Python program that gets the signals of a plan; it never outlives `close`.

    It runs as `python -m dpwa.testing PROGRAM ARGUMENTS...`, with the plan in DPWA_FAULTS.

    Args:
        program: path of the program; it needs no change.
        arguments: of the program.
        plan: its faults.
        options: of `subprocess.Popen`, such as `env` and `stdout`.

    Attributes:
        popen: the process.
    """

    def __init__(
        self,
        program: str | Path,
        *arguments: object,
        plan: FaultPlan | None = None,
        **options: Any,
    ) -> None:
        environment = {**os.environ, **(options.pop("env", None) or {})}
        environment[VARIABLE] = str(plan or FaultPlan())
        command = [sys.executable, "-m", "dpwa.testing", str(program), *map(str, arguments)]
        self.popen: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603  (the user's program)
            command, env=environment, **options
        )

    def wait_for_fault(self, timeout_s: float = LONGEST_S) -> signal.Signals:
        """Wait until a signal has killed or stopped the process, and return that signal.

        Raises:
            UserError: the program has ended without.
            TimeoutError: nothing of the sort happened in time.
        """
        end = time.monotonic() + timeout_s
        while (code := self._code()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.popen.pid} met no fault in {timeout_s} s")
            time.sleep(_LOOK_EVERY_S)
        if code >= 0:
            raise UserError(f"the program has ended with code {code} before any fault [DPWA-E204]")
        return signal.Signals(-code)

    def stop(self) -> None:
        """Let the process stand still at once, wherever it is, until `resume`."""
        self.popen.send_signal(signal.SIGSTOP)
        self.wait_for_fault()

    def resume(self) -> None:
        """Let a process go on that stands still."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process at once, wherever it is, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Wait for the end; return the exit code, or minus the signal that killed the process.

        Raises:
            TimeoutError: it has not ended in time.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(timeout_s)
        raise TimeoutError(f"process {self.popen.pid} has not ended in {timeout_s} s")

    def close(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        self.popen.kill()
        with self.popen:
            pass

    def _code(self) -> int | None:
        """Minus the signal that stopped or killed it, or its exit code; `None` while it runs."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        events = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT  # it stays to be reaped
        seen = os.waitid(os.P_PID, self.popen.pid, events)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
