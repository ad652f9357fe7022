"""`dpwa bench tables`: reading shared tables and adding to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.bench.benchmark import Benchmark
from dpwa.bench.plan import (
    BYTES_PER_MB,
    BYTES_PER_VALUE,
    LOCAL_HOST,
    MeasuringPlan,
    TablesPlan,
    ports_for,
)
from dpwa.bench.records import SessionReport
from dpwa.bench.result import BenchResult, summary
from dpwa.bench.suites.tables import MEASURES, TABLES, WHOLE


class TablesResult(BenchResult):
    """What `dpwa bench tables --json` prints.

    Attributes:
        rows: number of rows.
        columns: values of a row.
        mb_per_s: 10^6 bytes per second that each process got or added, of the measures of a whole
            table.
    """

    rows: int
    columns: int
    mb_per_s: dict[str, float]

    def heading(self) -> str:
        """Say what was measured."""
        return f"{self.rows} x {self.columns} float32"

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return what was worked out of the figures, by what it is."""
        return {**super().numbers(), "MB/s of each process": self.mb_per_s}


@dataclass(frozen=True)
class TablesSpec(Benchmark[TablesResult]):
    """What to measure.

    Attributes:
        rows: number of rows.
        columns: values of a row.
        repetitions: how often each measure is recorded.
        measures: names of the catalogue.
        hosts: where each process listens; one process for each.
    """

    rows: int = 1_000_000
    columns: int = 64
    repetitions: int = 9
    measures: tuple[str, ...] = tuple(MEASURES)
    hosts: tuple[str, ...] = (LOCAL_HOST,) * 4
    suite = TABLES

    def plan(self) -> TablesPlan:
        """Return what the processes are told.

        Raises:
            UserError: a measure is unknown, or too few ports are free.
        """
        self.suite.check(self.measures)
        return TablesPlan(
            nbytes=self.rows * self.columns * BYTES_PER_VALUE,
            hosts=self.hosts,
            ports=ports_for(self.suite.ports, len(self.hosts)),
            measures=self.measures,
            repetitions=self.repetitions,
            rows=self.rows,
            columns=self.columns,
        )

    def result(self, plan: MeasuringPlan, reports: Sequence[SessionReport]) -> TablesResult:
        """Put together what the processes have timed."""
        found = summary(plan, self.suite, reports)
        mb_per_s = {
            name: plan.nbytes / BYTES_PER_MB / (figure.median_ms / 1000)
            for name, figure in found["figures"].items()
            if name in WHOLE
        }
        return TablesResult(rows=self.rows, columns=self.columns, mb_per_s=mb_per_s, **found)
