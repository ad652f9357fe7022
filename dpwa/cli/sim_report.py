"""The output of `dpwa sim`: the figures of one run, or a table that compares several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from dpwa.cli import screen
from dpwa.report.wording import duration, number, share, size
from dpwa.sim.samples import BEGIN_ALIKE, has_target
from dpwa.sim.summary import SimulationFigures
from dpwa.sim.sweep import SimulatedRun
from dpwa.types import JsonObject

BEST = "best"
OF_SEVERAL = (
    "Each figure is the median of the runs with these settings. A figure that half of the runs do "
    "not have is shown as -."
)


@dataclass(frozen=True)
class Case:
    settings: Mapping[str, object]
    runs: Sequence[SimulatedRun]

    @property
    def name(self) -> str:
        return ", ".join(map(str, self.settings.values()))

    @property
    def figures(self) -> list[SimulationFigures]:
        return [run.figures for run in self.runs if run.figures]

    @property
    def reached(self) -> int:
        return sum(figures.reached for figures in self.figures)

    def middle(self, figure: str) -> float | None:
        """Return the median of a figure over the runs. `None` if half the runs lack this figure."""
        values = [getattr(figures, figure) for figures in self.figures]
        known = [math.inf if value is None or math.isnan(value) else value for value in values]
        found = median(known) if known else None
        return None if found == math.inf else found


@dataclass(frozen=True)
class Comparison:
    scenario: str  # the name in the command line
    runs: Sequence[SimulatedRun]
    is_sweep: bool  # several runs were planned

    @cached_property
    def cases(self) -> list[Case]:
        grouped: dict[tuple[object, ...], list[SimulatedRun]] = {}
        for run in self.runs:
            grouped.setdefault(tuple(run.planned.settings.values()), []).append(run)
        return [Case(runs[0].planned.settings, runs) for runs in grouped.values()]

    @property
    def has_target(self) -> bool:
        return any(has_target(run.planned.scenario.target) for run in self.runs)

    @cached_property
    def quality(self) -> str:
        """The figure to compare models by: accuracy, or loss, or the consensus distance."""
        cases = [case for case in self.cases if case.figures]
        known = (f for f in ("accuracy", "loss") if all(c.middle(f) is not None for c in cases))
        return next(known, "consensus_distance") if cases else "consensus_distance"

    @cached_property
    def best(self) -> Case | None:
        """The settings whose runs reach the target first. Without a target, the best model decides.

        `None` if runs were stopped, because their lengths then differ.
        """
        cases = [case for case in self.cases if case.figures]
        were_stopped = any(figures.was_stopped for case in cases for figures in case.figures)
        return None if len(cases) < 2 or were_stopped else min(cases, key=self._rank)

    def _rank(self, case: Case) -> tuple[float, float]:
        seconds, quality = case.middle("seconds_to_target"), case.middle(self.quality)
        sign = -1.0 if self.quality == "accuracy" else 1.0
        return (
            math.inf if seconds is None else seconds,
            math.inf if quality is None else sign * quality,
        )

    def to_json(self) -> JsonObject:
        found: list[JsonObject] = [
            {"settings": dict(run.planned.settings)}
            | (run.figures.to_json() if run.figures else {"error": run.error})
            for run in self.runs
        ]
        if not self.is_sweep and found:
            return {"scenario": self.scenario, **found[0]}
        best = dict(self.best.settings) if self.best else None
        return {"scenario": self.scenario, "runs": found, "best": best}


def show(found: Comparison) -> None:
    console = screen.console()
    if not found.is_sweep:
        for run in found.runs:
            figures = list(_figure_rows(found, run)) if run.figures else []
            console.print(screen.table(("", "", ""), figures, console.width, right=[1], text=[2]))
        return
    keys = list(found.runs[0].planned.settings) if found.runs else []
    columns = list(_columns(found))
    rows: list[tuple[str, ...]] = [
        (
            *(str(value) for value in case.settings.values()),
            *(text(case) for _, text in columns),
            BEST if case is found.best else "",
        )
        for case in found.cases
    ]
    headings = (*keys, *(heading for heading, _ in columns), "")
    right = range(len(keys), len(keys) + len(columns))
    if rows:
        console.print(screen.table(headings, rows, console.width, right=right))
    for case in found.cases:
        for error in dict.fromkeys(run.error for run in case.runs if run.error):
            console.print(screen.plain(f"{case.name or found.scenario}: {error}"))
    if any(len(case.runs) > 1 for case in found.cases):
        console.print(screen.plain(OF_SEVERAL))


def _columns(found: Comparison) -> Iterator[tuple[str, Callable[[Case], str]]]:
    """Yield the heading of each column, and a function that returns the text of a cell."""

    def shown(figure: str, text: Callable[[float], str]) -> Callable[[Case], str]:
        def cell(case: Case) -> str:
            value = case.middle(figure)
            return "-" if value is None else text(value)

        return cell

    if found.has_target:
        yield "to target", shown("seconds_to_target", duration)
        yield "rounds", shown("rounds_to_target", number)
        if any(len(case.runs) > 1 for case in found.cases):
            yield "reached", lambda case: f"{case.reached}/{len(case.runs)}"
    else:
        yield "rounds", shown("rounds", number)
    yield "sent/node", shown("bytes_per_node", size)
    yield "steps/s", shown("steps_per_s", number)
    yield "waits", shown("waiting_share", share)
    title = "distance" if found.quality == "consensus_distance" else found.quality
    yield title, shown(found.quality, lambda value: f"{value:.3g}")


def _figure_rows(found: Comparison, run: SimulatedRun) -> Iterator[tuple[str, str, str]]:
    figures = run.figures
    assert figures is not None  # noqa: S101 - a single run has figures, or has raised
    if found.has_target:
        if figures.seconds_to_target is None or figures.rounds_to_target is None:
            yield "to target", "-", "not reached"
        else:
            yield "to target", duration(figures.seconds_to_target), "simulated"
            yield (
                "rounds to target",
                number(figures.rounds_to_target),
                "updates of each node (mean)",
            )
    yield "length", duration(figures.seconds), "simulated"
    yield "rounds", number(figures.rounds), "updates of each node (mean)"
    yield "nodes", number(figures.nodes), "alive at the end"
    yield "steps per second", number(figures.steps_per_s), "of all nodes together"
    yield "waiting", share(figures.waiting_share), "of the nodes' time was spent waiting for peers"
    yield "sent", size(figures.bytes_per_node), "by each node (mean)"
    yield "  most", size(figures.most_bytes_sent), "by one node"
    if figures.serving_fairness is not None:
        remark = "Jain's index of serving, 1 if all nodes served the same amount"
        yield "fairness", f"{figures.serving_fairness:.3g}", remark
    if figures.accuracy is not None:
        yield "accuracy", f"{figures.accuracy:.3g}", "of the mean model"
    if figures.loss is not None:
        yield "loss", f"{figures.loss:.3g}", "mean of the nodes"
    yield "consensus distance", f"{figures.consensus_distance:.3g}", "of a node from the mean"
    alike = run.planned.scenario.task in BEGIN_ALIKE
    what = ("variance", "between nodes") if alike else ("variance ratio", "end to start")
    yield what[0], f"{figures.variance_ratio:.3g}", what[1]
    yield "engine", figures.detail, f"seed {figures.seed}"
