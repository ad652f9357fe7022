"""The pictures of a comparison: one colour a run, the mean of its nodes and how far they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpwa.report.charts import Chart
from dpwa.report.comparison import Band, ComparedRun
from dpwa.report.curves import scale
from dpwa.report.style import Looks, label, legend, line_handles, nothing, time_unit
from dpwa.report.wording import duration, names, number, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def comparison_charts(runs: Sequence[ComparedRun], looks: Looks) -> list[Chart]:
    """Return the pictures.

    Args:
        runs: that are compared.
        looks: how each is drawn, by label.
    """
    longest = max(run.facts.run.seconds for run in runs)
    length, unit = time_unit(longest)
    text = "The line is the mean of the nodes, the area from the least to the greatest."
    return [
        Chart(
            "compare-loss-time",
            "Loss over time",
            text,
            _alt(runs, "lowest mean loss", lambda run: number(run.lowest)),
            lambda figure: _draw_bands(
                figure, _bands(runs, "loss_by_time"), looks, f"{unit} since the start", length
            ),
        ),
        Chart(
            "compare-loss-steps",
            "Loss over steps",
            text,
            _alt(runs, "steps", lambda run: f"{run.facts.steps:,.0f}"),
            lambda figure: _draw_bands(
                figure, _bands(runs, "loss_by_steps"), looks, "steps of a node"
            ),
        ),
        Chart(
            "compare-speed",
            "Steps per second of a node",
            text,
            _alt(runs, "duration", lambda run: duration(run.facts.run.seconds)),
            lambda figure: _draw_bands(
                figure, _bands(runs, "speed"), looks, f"{unit} since the start", length, "steps/s"
            ),
        ),
        Chart(
            "compare-bytes",
            "Bytes merged by all nodes",
            "Snapshots that were received or mapped, added up.",
            _alt(runs, "bytes merged", lambda run: size(float(run.moved[1][-1]))),
            lambda figure: _draw_moved(figure, runs, looks, length, unit),
        ),
    ]


def _alt(runs: Sequence[ComparedRun], what: str, told: Callable[[ComparedRun], str]) -> str:
    parts = [f"{run.label} {told(run)}" for run in runs]
    return f"One line for each run; {what}: {names(parts, len(parts))}."


def _bands(runs: Sequence[ComparedRun], name: str) -> dict[str, Band]:
    return {run.label: getattr(run, name) for run in runs}


def _draw_bands(
    figure: Figure,
    bands: dict[str, Band],
    looks: Looks,
    width: str,
    length: float = 1.0,
    height: str = "training loss",
) -> None:
    axes = figure.subplots()
    if not any(len(band.at) for band in bands.values()):
        nothing(axes, "Nothing is known of this.")
        return
    for name, band in bands.items():
        look = looks[name]
        at = band.at / length
        axes.fill_between(at, band.low, band.high, color=look.colour, alpha=0.18, linewidth=0)
        axes.plot(at, band.mean, **look.line)
    if height == "steps/s":
        axes.set_ylim(bottom=0)
    else:
        scale(axes, np.concatenate([b.low for b in bands.values()]))
    axes.margins(x=0.01)
    is_log = axes.get_yscale() == "log"
    label(axes, width, height + (", log scale" if is_log else ""))
    legend(figure, line_handles(looks, list(bands)), 3)


def _draw_moved(
    figure: Figure, runs: Sequence[ComparedRun], looks: Looks, length: float, unit: str
) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = figure.subplots()
    for run in runs:
        at, moved = run.moved
        axes.plot(at / length, moved, **looks[run.label].line)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    label(axes, f"{unit} since the start", "")
    legend(figure, line_handles(looks, [run.label for run in runs]), 3)
