"""`dpwa bench collectives`: collectives among peers beside those of Gloo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.bench.benchmark import Benchmark
from dpwa.bench.plan import LOCAL_HOST, CollectivesPlan, MeasuringPlan, nbytes_of, ports_for
from dpwa.bench.records import SessionReport
from dpwa.bench.result import BenchResult, summary
from dpwa.bench.suites.collectives import COLLECTIVES, MEASURES


class CollectivesResult(BenchResult):
    """What `dpwa bench collectives --json` prints.

    Attributes:
        size_mb: size of the value, in 10^6 bytes.
    """

    size_mb: float

    def heading(self) -> str:
        """Say what was measured."""
        return f"{self.size_mb:g} MB of float32"


@dataclass(frozen=True)
class CollectivesSpec(Benchmark[CollectivesResult]):
    """What to measure.

    Attributes:
        size_mb: size of the value, in 10^6 bytes.
        repetitions: how often each measure is recorded.
        measures: names of the catalogue.
        hosts: where each process listens; one process for each.
    """

    size_mb: float
    repetitions: int = 9
    measures: tuple[str, ...] = tuple(MEASURES)
    hosts: tuple[str, ...] = (LOCAL_HOST, LOCAL_HOST)
    suite = COLLECTIVES

    def plan(self) -> CollectivesPlan:
        """Return what the processes are told.

        Raises:
            UserError: a measure is unknown, or too few ports are free.
        """
        self.suite.check(self.measures)
        return CollectivesPlan(
            nbytes=nbytes_of(self.size_mb),
            hosts=self.hosts,
            ports=ports_for(self.suite.ports, len(self.hosts)),
            measures=self.measures,
            repetitions=self.repetitions,
        )

    def result(self, plan: MeasuringPlan, reports: Sequence[SessionReport]) -> CollectivesResult:
        """Put together what the processes have timed."""
        return CollectivesResult(size_mb=self.size_mb, **summary(plan, self.suite, reports))
