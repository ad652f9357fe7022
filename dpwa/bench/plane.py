"""`dpwa bench plane`: publishing, fetching and merging, beside copies, plain TCP and Gloo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.bench.benchmark import Benchmark
from dpwa.bench.plan import (
    BYTES_PER_VALUE,
    LOCAL_HOST,
    MeasuringPlan,
    PlanePlan,
    nbytes_of,
    ports_for,
)
from dpwa.bench.records import SessionReport
from dpwa.bench.result import BenchResult, summary
from dpwa.bench.suites.plane import MEASURES, PLANE
from dpwa.errors import UserError


class PlaneResult(BenchResult):
    """What `dpwa bench plane --json` prints.

    Attributes:
        size_mb: size of the model, in 10^6 bytes.
        tensors: number of its tensors.
    """

    size_mb: float
    tensors: int

    def heading(self) -> str:
        """Say what was measured."""
        tensors = "1 tensor" if self.tensors == 1 else f"{self.tensors} tensors"
        return f"{self.size_mb:g} MB of float32 in {tensors}"


@dataclass(frozen=True)
class PlaneSpec(Benchmark[PlaneResult]):
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
    suite = PLANE

    def plan(self) -> PlanePlan:
        """Return what the processes are told.

        Raises:
            UserError: a measure is unknown, the model has fewer values than tensors, or too few
                ports are free.
        """
        nbytes = nbytes_of(self.size_mb)
        values = nbytes // BYTES_PER_VALUE
        if values < self.tensors:
            raise UserError(f"{self.tensors} tensors do not fit into {values} values")
        self.suite.check(self.measures)
        return PlanePlan(
            nbytes=nbytes,
            hosts=self.hosts,
            ports=ports_for(self.suite.ports, len(self.hosts)),
            tensors=self.tensors,
            measures=self.measures,
            repetitions=self.repetitions,
        )

    def result(self, plan: MeasuringPlan, reports: Sequence[SessionReport]) -> PlaneResult:
        """Put together what the processes have timed."""
        return PlaneResult(
            size_mb=self.size_mb, tensors=self.tensors, **summary(plan, self.suite, reports)
        )
