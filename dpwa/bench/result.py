"""From what the processes have timed to medians and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from dpwa.bench.machine import Machine, this_machine
from dpwa.bench.plan import MeasuringPlan
from dpwa.bench.processes import BenchmarkError
from dpwa.bench.records import Sample, SessionReport
from dpwa.bench.suite import Ratio, Suite
from dpwa.types import StrictModel

FAILURES_ALLOWED = 0.1  # share of the rounds of a measure that may merge nothing


class Figure(StrictModel):
    """One thing that was timed, in milliseconds, over all repetitions that count."""

    median_ms: float
    min_ms: float
    max_ms: float
    repetitions: int


class BenchResult(StrictModel):
    """What every benchmark of `dpwa bench` prints as JSON.

    Attributes:
        processes: number of processes.
        repetitions: how often each measure was recorded.
        machine: where this was measured.
        figures: times by name.
        failed_rounds: of each measure how many rounds merged nothing, where some did.
        ratios: quotients of medians by name.
    """

    processes: int
    repetitions: int
    machine: Machine
    figures: dict[str, Figure]
    failed_rounds: dict[str, int]
    ratios: dict[str, float]

    def heading(self) -> str:
        """Say what was measured."""
        raise NotImplementedError

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return what was worked out of the figures, by what it is."""
        return {"ratio of medians": self.ratios}


def summary(plan: MeasuringPlan, suite: Suite, reports: Sequence[SessionReport]) -> dict[str, Any]:
    """Return the fields of a `BenchResult`.

    Raises:
        BenchmarkError: more than a tenth of the rounds of a measure merged nothing.
    """
    figures = figures_of(reports)
    return {
        "processes": len(plan.hosts),
        "repetitions": plan.repetitions,
        "machine": this_machine(),
        "figures": figures,
        "failed_rounds": failures_of(reports),
        "ratios": ratios_of(figures, suite.ratios),
    }


def figures_of(reports: Sequence[SessionReport]) -> dict[str, Figure]:
    """Return every figure by name.

    Where several processes time a figure, a repetition takes as long as its slowest process: that
    is when the round is over. A repetition counts only when no process has failed in it.

    Raises:
        BenchmarkError: more than a tenth of the rounds of a measure merged nothing.
    """
    figures: dict[str, Figure] = {}
    for measure in reports[0].samples:
        repetitions = list(zip(*(report.samples[measure] for report in reports), strict=True))
        _require_few_failures(measure, repetitions)
        for name, seconds in _slowest(repetitions).items():
            figures[name] = Figure(
                median_ms=1000 * median(seconds),
                min_ms=1000 * min(seconds),
                max_ms=1000 * max(seconds),
                repetitions=len(seconds),
            )
    return figures


def failures_of(reports: Sequence[SessionReport]) -> dict[str, int]:
    """Return how many rounds of each measure merged nothing; only those where some did."""
    counts = {
        measure: sum(report.samples[measure].count(None) for report in reports)
        for measure in reports[0].samples
    }
    return {measure: count for measure, count in counts.items() if count}


def ratios_of(figures: Mapping[str, Figure], ratios: Iterable[Ratio]) -> dict[str, float]:
    """Return those ratios whose figures were measured: of medians."""
    return {
        ratio.name: _sum(ratio.above, figures) / _sum(ratio.below, figures)
        for ratio in ratios
        if {*ratio.above, *ratio.below} <= figures.keys()
    }


def _sum(names: Iterable[str], figures: Mapping[str, Figure]) -> float:
    return sum(figures[name].median_ms for name in names)


def _require_few_failures(measure: str, repetitions: Sequence[tuple[Sample, ...]]) -> None:
    samples = [sample for repetition in repetitions for sample in repetition]
    rounds = sum(sample is None or bool(sample) for sample in samples)
    failed = samples.count(None)
    if failed > FAILURES_ALLOWED * rounds:
        raise BenchmarkError(f"{measure}: {failed} of {rounds} rounds merged nothing")


def _slowest(repetitions: Sequence[tuple[Sample, ...]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    for repetition in repetitions:
        timed = [sample for sample in repetition if sample is not None]
        if len(timed) < len(repetition):
            continue
        for name in dict.fromkeys(name for sample in timed for name in sample):
            slowest = max(sample[name] for sample in timed if name in sample)
            seconds.setdefault(name, []).append(slowest)
    return seconds
