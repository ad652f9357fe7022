"""The parent's side: starts the processes of a benchmark, hears them, and leaves none behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dpwa.bench.plan import BenchPlan, node_name
from dpwa.data.shared_memory import sweep
from dpwa.errors import DpwaError
from dpwa.launch import LaunchSpec, run_nodes
from dpwa.launch.stopping import PASSED_ON

OnRecord = Callable[[int, str], None]

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # figures of one thread; and the processes share the cores
    # The host name, which Gloo would look up, need not be known in a container.
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0",
}


class BenchmarkError(DpwaError):
    """A benchmark has no result: a process failed, or too many rounds merged nothing."""


def run_processes(command: Sequence[str], plan: BenchPlan, on_record: OnRecord) -> None:
    """Run a command once for each host of a plan, and return when all have ended well.

    Each finds its `Rank` in its environment. What it writes to standard output is passed on line by
    line with its rank; what it writes to standard error goes there.

    Raises:
        BenchmarkError: a process failed; the others have been stopped.
        KeyboardInterrupt: the user interrupted; all have been stopped.
    """
    names = [node_name(rank) for rank in range(len(plan.hosts))]
    audience = _Callbacks(names, on_record)
    try:
        with tempfile.TemporaryDirectory(prefix="dpwa-bench-") as folder:
            path = Path(folder, "plan.json")
            path.write_text(plan.model_dump_json(), encoding="utf-8")
            launch = LaunchSpec(command, path, names, environment=_ENVIRONMENT)
            run_nodes(
                launch, audience.on_line, on_exit=audience.on_exit, on_signal=audience.on_signal
            )
    finally:
        sweep()  # shared memory of a process that was killed


class _Callbacks:
    def __init__(self, names: Sequence[str], on_record: OnRecord) -> None:
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._on_record = on_record
        self._stopping = False

    def on_line(self, name: str, stream: str, line: str) -> None:
        if stream == "stdout":
            self._on_record(self._ranks[name], line)
        elif not self._stopping:
            sys.stderr.write(f"{name}: {line}{os.linesep}")

    def on_exit(self, name: str, code: int) -> None:
        if code != 0 and not self._stopping:
            raise BenchmarkError(f"process {name} failed (exit code {code})")

    def on_signal(self, number: signal.Signals, names: Sequence[str]) -> None:  # noqa: ARG002
        self._stopping |= number not in PASSED_ON
