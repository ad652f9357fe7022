"""`dpwa bench plane`, the parent: starts the processes and puts their figures together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpwa.bench.catalogue import LINKS, MEASURES, RAW_TCP
from dpwa.bench.machine import Machine, this_machine
from dpwa.bench.plan import BYTES_PER_VALUE, LOCAL_HOST, PlanePlan, ports_for
from dpwa.bench.processes import run_processes
from dpwa.bench.records import Progress, SessionReport, parse_record
from dpwa.bench.result import Figure, failures_of, figures_of, ratios_of
from dpwa.errors import UserError
from dpwa.types import StrictModel

BYTES_PER_MB = 1_000_000
WORKER = (sys.executable, "-m", "dpwa.bench.worker")

OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class PlaneSpec:
    """What to measure.

    Attributes:
        size_mb: size of the model, in 10^6 bytes.
        repetitions: how often each measure is recorded.
        tensors: number of tensors that the model has.
        measures: names of the catalogue.
        hosts: where each process listens; one process for each.
    """

    size_mb: float
    repetitions: int = 9
    tensors: int = 1
    measures: tuple[str, ...] = tuple(MEASURES)
    hosts: tuple[str, ...] = (LOCAL_HOST, LOCAL_HOST)

    def plan(self) -> PlanePlan:
        """Return what the processes are told.

        Raises:
            UserError: a measure is unknown, the model has fewer values than tensors, or too few
                ports are free.
        """
        values = round(self.size_mb * BYTES_PER_MB / BYTES_PER_VALUE)
        if values < self.tensors:
            raise UserError(f"{self.tensors} tensors do not fit into {values} values")
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown or not self.measures:
            known = ", ".join(MEASURES)
            raise UserError(f"expected measures of {known} (got {', '.join(unknown) or 'none'})")
        return PlanePlan(
            nbytes=values * BYTES_PER_VALUE,
            hosts=self.hosts,
            ports=ports_for([*LINKS, RAW_TCP], len(self.hosts)),
            tensors=self.tensors,
            measures=self.measures,
            repetitions=self.repetitions,
        )


class PlaneResult(StrictModel):
    """What `dpwa bench plane --json` prints.

    Attributes:
        size_mb: size of the model, in 10^6 bytes.
        tensors: number of its tensors.
        processes: number of processes.
        repetitions: how often each measure was recorded.
        machine: where this was measured.
        figures: times by name.
        failed_rounds: of each measure how many rounds merged nothing, where some did.
        ratios: quotients of medians by name.
    """

    size_mb: float
    tensors: int
    processes: int
    repetitions: int
    machine: Machine
    figures: dict[str, Figure]
    failed_rounds: dict[str, int]
    ratios: dict[str, float]


def run_plane(
    spec: PlaneSpec,
    on_progress: OnProgress = lambda _: None,
    command: Sequence[str] = WORKER,
) -> PlaneResult:
    """Measure, and return the result.

    Args:
        spec: what to measure.
        on_progress: called with the number of repetitions done.
        command: starts a process that calls `dpwa.bench.worker.main`.

    Raises:
        UserError: the spec is impossible.
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

    run_processes(command, spec.plan(), hear)
    figures = figures_of(reports)
    return PlaneResult(
        size_mb=spec.size_mb,
        tensors=spec.tensors,
        processes=len(spec.hosts),
        repetitions=spec.repetitions,
        machine=this_machine(),
        figures=figures,
        failed_rounds=failures_of(reports),
        ratios=ratios_of(figures),
    )
