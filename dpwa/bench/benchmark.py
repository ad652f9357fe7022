"""A benchmark, the parent: starts the processes and puts their figures together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from dpwa.bench.plan import MeasuringPlan
from dpwa.bench.processes import run_processes
from dpwa.bench.records import Progress, SessionReport, parse_record
from dpwa.bench.result import BenchResult
from dpwa.bench.suite import Suite

WORKER = (sys.executable, "-m", "dpwa.bench.worker")

OnProgress = Callable[[int], None]
AnyResult = TypeVar("AnyResult", bound=BenchResult)


class Benchmark(Generic[AnyResult]):
    """What a user wants to be measured.

    Attributes:
        suite: what can be.
    """

    suite: ClassVar[Suite]

    def plan(self) -> MeasuringPlan:
        """Return what the processes are told.

        Raises:
            UserError: it is impossible, or too few ports are free.
        """
        raise NotImplementedError

    def result(self, plan: MeasuringPlan, reports: Sequence[SessionReport]) -> AnyResult:
        """Put together what the processes have timed.

        Raises:
            BenchmarkError: more than a tenth of the rounds merged nothing.
        """
        raise NotImplementedError


def run_benchmark(
    benchmark: Benchmark[AnyResult],
    on_progress: OnProgress = lambda _: None,
    command: Sequence[str] = WORKER,
) -> AnyResult:
    """Measure, and return the result.

    Args:
        benchmark: what to measure.
        on_progress: called with the number of repetitions done.
        command: starts a process that calls `dpwa.bench.worker.main`.

    Raises:
        UserError: the wish is impossible.
        BenchmarkError: a process failed, or more than a tenth of the rounds merged nothing.
        KeyboardInterrupt: the user interrupted; no process is left.
    """
    reports: list[SessionReport] = []

    def hear(rank: int, line: str) -> None:  # noqa: ARG001
        record = parse_record(line)
        if isinstance(record, Progress):
            on_progress(record.repetitions_done)
        else:
            reports.append(record)

    plan = benchmark.plan()
    run_processes(command, plan, hear)
    return benchmark.result(plan, reports)
