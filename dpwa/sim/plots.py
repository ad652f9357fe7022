"""Pictures of simulated runs: time to the target, how they went, bytes, and who served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpwa.report.style import (
    FAINT,
    INK,
    OTHERS,
    PALETTE,
    Looks,
    drawing,
    label,
    legend,
    line_handles,
    looks_of,
    new_figure,
    nothing,
    save_png,
    scale,
    time_unit,
)
from dpwa.report.wording import duration, size
from dpwa.sim.samples import RunOutcome, Sample
from dpwa.sim.summary import SimulationFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ("progress", "bytes", "serving", "time_to_target")
MOST_BARS = 40
BAR_INCHES = 0.26
WIDTH = 6.0  # inches
LEAST_SHOWN = 1e-16  # what is nearer to 0 is the noise of float64


@dataclass(frozen=True)
class DrawnRun:
    """A run as pictures show it."""

    name: str  # unique
    figures: SimulationFigures
    outcome: RunOutcome
    is_best: bool  # it is the one to choose


def draw_runs(runs: Sequence[DrawnRun], folder: Path) -> list[Path]:
    """Draw all pictures as PNG files in a folder; return the files."""
    looks = looks_of([run.name for run in runs], {run.name: "best" for run in runs if run.is_best})
    bars = 1.1 + BAR_INCHES * min(len(runs), MOST_BARS)
    pictures: dict[str, tuple[Callable[[Figure], None], float]] = {
        "progress": (lambda figure: _draw_progress(figure, runs, looks), 3.4),
        "bytes": (lambda figure: _draw_bytes(figure, runs), bars),
        "serving": (lambda figure: _draw_serving(figure, runs, looks), 3.4),
    }
    if any(run.figures.reached for run in runs):
        pictures["time_to_target"] = (lambda figure: _draw_times(figure, runs), bars)
    for name in PICTURES:  # of another run, in the same folder
        (folder / f"{name}.png").unlink(missing_ok=True)
    with drawing():
        for name, (draw, height) in pictures.items():
            figure = new_figure(height, WIDTH)
            draw(figure)
            save_png(figure, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in pictures]


def _draw_progress(figure: Figure, runs: Sequence[DrawnRun], looks: Looks) -> None:
    """Draw over time what was trained for: accuracy, else loss, else the consensus distance."""
    quality = _quality(runs)
    axes = figure.subplots()
    length, unit = time_unit(max(run.figures.seconds for run in runs))
    values: list[float] = []
    for run in runs:
        points = [(s.time_s / length, quality[1](s)) for s in run.outcome.samples]
        known = [(at, value) for at, value in points if value is not None]
        axes.plot(*zip(*known, strict=True), **looks[run.name].line)
        values += [value for _, value in known]
    if quality[0] != "accuracy":
        scale(axes, np.array(values))
    axes.margins(x=0.01)
    label(axes, f"{unit} since the start, simulated", quality[0])
    legend(figure, line_handles(looks, [run.name for run in runs]), 3)


def _quality(runs: Sequence[DrawnRun]) -> tuple[str, Callable[[Sample], float | None]]:
    last = [run.outcome.samples[-1] for run in runs]
    if all(sample.accuracy is not None for sample in last):
        return "accuracy", lambda sample: sample.accuracy
    if all(sample.loss is not None for sample in last):
        return "loss", lambda sample: sample.loss
    return "consensus distance", lambda sample: max(sample.consensus_distance, LEAST_SHOWN)


def _draw_times(figure: Figure, runs: Sequence[DrawnRun]) -> None:
    axes = figure.subplots()
    values = {run.name: run.figures.seconds_to_target for run in runs}
    _draw_bars(axes, runs, values, lambda value: duration(value) if value else "not reached")
    label(axes, "seconds to the target, simulated", "", grid="x")


def _draw_bytes(figure: Figure, runs: Sequence[DrawnRun]) -> None:
    axes = figure.subplots()
    values = {run.name: run.figures.bytes_per_node / 1e6 for run in runs}
    _draw_bars(axes, runs, values, lambda value: size(1e6 * (value or 0.0)))
    label(axes, "megabytes that a node has sent", "", grid="x")


def _draw_bars(
    axes: Axes,
    runs: Sequence[DrawnRun],
    values: Mapping[str, float | None],
    text: Callable[[float | None], str],
) -> None:
    """Draw a bar for each run, of many for the first ones and the best."""
    shown = list(runs[:MOST_BARS])
    shown += [run for run in runs[MOST_BARS:] if run.is_best]
    for row, run in enumerate(shown):
        value = values[run.name]
        axes.barh(row, value or 0.0, height=0.62, color=PALETTE[0] if run.is_best else OTHERS)
        axes.annotate(
            f" {text(value)}",
            (value or 0.0, row),
            va="center",
            fontsize=8.5,
            color=INK if run.is_best else FAINT,
        )
    axes.set_yticks(range(len(shown)), [run.name for run in shown])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlim(left=0)


def _draw_serving(figure: Figure, runs: Sequence[DrawnRun], looks: Looks) -> None:
    """Draw how many snapshots each node has served, the busiest first, by the mean."""
    axes = figure.subplots()
    drawn = []
    for run in runs:
        served = np.sort([node.served for node in run.outcome.nodes])[::-1]
        if served.sum() and len(served) > 1:
            places = np.linspace(0.0, 100.0, len(served))
            axes.plot(places, served / served.mean(), **looks[run.name].line)
            drawn.append(run.name)
    if not drawn:
        nothing(axes, "No node has served snapshots to others.")
        return
    axes.set_ylim(bottom=0)
    label(axes, "nodes, the busiest first, in percent", "snapshots served (1: an equal share)")
    legend(figure, line_handles(looks, drawn), 3)
