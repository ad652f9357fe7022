"""Plans of faults: the signals that a process sends itself, at chosen moments of its work.

The moments are the fault points of `dpwa.fault_points`, such as `collective.met`. A plan hits the
same line of code each time, while a signal from outside hits a different line in each run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpwa import fault_points
from dpwa.errors import UserError
from dpwa.lifecycle import Closeable

VARIABLE = "DPWA_FAULTS"
KILL_OR_STOP = ("SIGKILL", "SIGSTOP")


@dataclass(frozen=True)
class Fault:
    """A signal at a fault point.

    Attributes:
        point: name of the fault point.
        nth: at which time it is reached, from 1.
        signal: name of the signal.

    Raises:
        UserError: there is no such signal, or `nth` is below 1.
    """

    point: str
    nth: int = 1
    signal: str = "SIGKILL"

    def __post_init__(self) -> None:
        if self.signal not in signal.Signals.__members__:
            raise UserError(
                f"{self.signal!r} is no signal; expected a name such as SIGKILL [DPWA-E196]"
            )
        if self.nth < 1:
            raise UserError(
                f"a fault point is reached for the first time at 1, not {self.nth} [DPWA-E197]"
            )

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}:{self.signal}"


@dataclass(frozen=True)
class FaultPlan:
    """Faults of one process, each at its own moment.

    As text, `POINT:NTH:SIGNAL,...`, it goes into the environment variable DPWA_FAULTS.

    Attributes:
        faults: the faults.
        seed: the seed of a random plan.
    """

    faults: tuple[Fault, ...] = ()
    seed: int | None = None

    @classmethod
    def random(
        cls,
        seed: int,
        points: Sequence[str],
        signals: Sequence[str] = KILL_OR_STOP,
        *,
        nth_at_most: int = 10,
    ) -> FaultPlan:
        """Pick one random fault. The same arguments give the same plan."""
        rng = random.Random(seed)
        fault = Fault(rng.choice(points), rng.randint(1, nth_at_most), rng.choice(signals))
        return cls((fault,), seed)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read the result of `str(plan)`.

        Raises:
            UserError: the text has a different form.
        """
        return cls(tuple(_parsed(part) for part in text.split(",") if part.strip()))

    def __str__(self) -> str:
        return ",".join(map(str, self.faults))

    def install(self) -> None:
        """Send this process the signals at their moments. This replaces any earlier plan."""
        if not self.faults:
            fault_points.install(None)
            return
        signals = {(fault.point, fault.nth): fault.signal for fault in self.faults}
        times: Counter[str] = Counter()
        lock = threading.Lock()  # points are reached on every thread of a node

        def hook(point: str) -> None:
            with lock:
                times[point] += 1
                name = signals.get((point, times[point]))
            if name == "SIGSTOP":  # by this thread: by another one this one would stop later
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            elif name is not None:
                os.kill(os.getpid(), signal.Signals[name])

        fault_points.install(hook)


def install_from_environment() -> None:
    """Install the plan that the environment variable DPWA_FAULTS holds, if it is set.

    Raises:
        UserError: it is no plan.
    """
    FaultPlan.parse(os.environ.get(VARIABLE, "")).install()


def _parsed(text: str) -> Fault:
    point, _, rest = text.strip().partition(":")
    nth, _, name = rest.partition(":")
    if not (point and nth.isdecimal() and name):
        raise UserError(f"{text!r} is no fault; expected POINT:NTH:SIGNAL [DPWA-E195]")
    return Fault(point, int(nth), name)


LONGEST_S = 30.0

_LOOK_EVERY_S = 0.005


class FaultyProcess(Closeable):
    """A Python program that gets the signals of a plan. It never outlives `close`.

    It runs as `python -m dpwa.testing PROGRAM ARGUMENTS...`, with the plan in DPWA_FAULTS.

    Args:
        program: path of the program, which needs no change.
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
        """Let a stopped process continue."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process at once, wherever it is, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Wait for the end. Return the exit code, or minus the signal that killed the process.

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
        """Return minus the signal that stopped or killed it, its exit code, or `None`."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        events = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT  # it stays to be reaped
        seen = os.waitid(os.P_PID, self.popen.pid, events)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
