"""Plans of faults: which signal a process sends itself, at which moment of its work.

The moments are the fault points of `dpwa.fault_points`, such as `collective.met`: a plan hits the
same line of code each time, where a signal from outside hits another line in each run.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dpwa import fault_points
from dpwa.errors import UserError

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
        faults: what is to happen.
        seed: where a random plan comes from.
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
        """Draw one fault: the same arguments give the same plan."""
        rng = random.Random(seed)
        fault = Fault(rng.choice(points), rng.randint(1, nth_at_most), rng.choice(signals))
        return cls((fault,), seed)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read what `str(plan)` has written.

        Raises:
            UserError: it is something else.
        """
        return cls(tuple(_parsed(part) for part in text.split(",") if part.strip()))

    def __str__(self) -> str:
        return ",".join(map(str, self.faults))

    def install(self) -> None:
        """Send this process the signals when their moments come; replaces any former plan."""
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
            if name is not None:
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
