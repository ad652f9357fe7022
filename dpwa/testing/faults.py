"""Plans of faults. A fault is a signal that a process sends to itself at a chosen moment.

The moments are the fault points of `dpwa.fault_points`, such as `collective.met`. A plan stops the
process at the same line of code in every run. A signal from outside would not.
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
    """A signal that a process gets when the process reaches a fault point.

    Attributes:
        point: the name of the fault point.
        nth: 1 to send the signal when the point is reached for the first time, 2 for the second
            time, and so on.
        signal: the name of the signal.

    Raises:
        UserError: the signal does not exist, or `nth` is below 1.
    """

    point: str
    nth: int = 1
    signal: str = "SIGKILL"

    def __post_init__(self) -> None:
        if self.signal not in signal.Signals.__members__:
            raise UserError(
                f"{self.signal!r} is not a signal. Expected a name such as SIGKILL [DPWA-E196]"
            )
        if self.nth < 1:
            raise UserError(
                f"nth is {self.nth}, but must be 1 or more. 1 means the first time [DPWA-E197]"
            )

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}:{self.signal}"


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one process.

    The text of a plan, `POINT:NTH:SIGNAL,...`, is a value for the environment variable DPWA_FAULTS.

    Attributes:
        faults: the faults.
        seed: the seed of a random plan, or `None`.
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
        """Return a plan with one random fault. The same arguments give the same plan."""
        rng = random.Random(seed)
        fault = Fault(rng.choice(points), rng.randint(1, nth_at_most), rng.choice(signals))
        return cls((fault,), seed)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Return the plan for a text in the form that `str(plan)` returns.

        Raises:
            UserError: the text has a different form.
        """
        return cls(tuple(_parsed(part) for part in text.split(",") if part.strip()))

    def __str__(self) -> str:
        return ",".join(map(str, self.faults))

    def install(self) -> None:
        """Start to send the plan's signals to this process. This plan replaces any earlier plan."""
        if not self.faults:
            fault_points.install(None)
            return
        signals = {(fault.point, fault.nth): fault.signal for fault in self.faults}
        times: Counter[str] = Counter()
        lock = threading.Lock()  # because each thread of a node reaches points

        def hook(point: str) -> None:
            with lock:
                times[point] += 1
                name = signals.get((point, times[point]))
            if name == "SIGSTOP":  # to this thread, because it must stop at once
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            elif name is not None:
                os.kill(os.getpid(), signal.Signals[name])

        fault_points.install(hook)


def install_from_environment() -> None:
    """Install the plan in the environment variable DPWA_FAULTS, if it is set.

    Raises:
        UserError: the variable has a different form.
    """
    FaultPlan.parse(os.environ.get(VARIABLE, "")).install()


def _parsed(text: str) -> Fault:
    point, _, rest = text.strip().partition(":")
    nth, _, name = rest.partition(":")
    if not (point and nth.isdecimal() and name):
        raise UserError(f"{text!r} is not a fault. Expected POINT:NTH:SIGNAL [DPWA-E195]")
    return Fault(point, int(nth), name)


LONGEST_S = 30.0

_LOOK_EVERY_S = 0.005


class FaultyProcess(Closeable):
    """A process that runs a Python program with a plan of faults. `close` kills the process.

    The process runs `python -m dpwa.testing PROGRAM ARGUMENTS...`, with the plan in DPWA_FAULTS.

    Args:
        program: the path of the program. The program needs no change.
        arguments: the arguments of the program.
        plan: the faults of the process.
        options: options of `subprocess.Popen`, such as `env` and `stdout`.

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
        """Wait until a signal has killed or stopped the process. Return the signal.

        Raises:
            UserError: the program has ended without a fault.
            TimeoutError: no fault happened in time.
        """
        end = time.monotonic() + timeout_s
        while (code := self._code()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.popen.pid} met no fault within {timeout_s} s")
            time.sleep(_LOOK_EVERY_S)
        if code >= 0:
            raise UserError(f"the program has ended with code {code} before any fault [DPWA-E204]")
        return signal.Signals(-code)

    def stop(self) -> None:
        """Suspend the process now, at any line of its code, until `resume`."""
        self.popen.send_signal(signal.SIGSTOP)
        self.wait_for_fault()

    def resume(self) -> None:
        """Resume a suspended process."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process now, at any line of its code, and wait until it has ended."""
        self.popen.kill()
        self.popen.wait()

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Wait until the process ends. Return its exit code, or minus the signal that killed it.

        Raises:
            TimeoutError: the process has not ended in time.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(timeout_s)
        raise TimeoutError(f"process {self.popen.pid} has not ended within {timeout_s} s")

    def close(self) -> None:
        """Kill the process if it runs, and close its pipes."""
        self.popen.kill()
        with self.popen:
            pass

    def _code(self) -> int | None:
        """Return the exit code, -N if signal N stopped or killed the process, or `None`."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        events = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT  # WNOWAIT: do not reap it
        seen = os.waitid(os.P_PID, self.popen.pid, events)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
