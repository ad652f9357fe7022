"""Pictures over time: losses, speeds, and the distance between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpwa.observe.figures import INDEX
from dpwa.observe.history import Floats
from dpwa.observe.run_data import NodeLog, Run
from dpwa.report.style import (
    INK,
    MOST_POINTS,
    MOST_POINTS_OF_ALL,
    Looks,
    label,
    legend,
    line_handles,
    nothing,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_ABOVE = 20.0  # times the least value: then the axis is logarithmic
SHORT_LOG = 1000.0  # times the least value: then there is room for 2 and 5
SPEED_WINDOWS = 60  # of a run, over each of which a speed is taken
LEAST_WINDOW_S = 3.0

Curve = tuple[Floats, Floats]  # times in seconds since the epoch, and values


def loss_curves(run: Run) -> dict[str, Curve]:
    return {name: _curve(node, "loss") for name, node in run.nodes.items()}


def distance_curves(run: Run) -> dict[str, Curve]:
    return {name: _curve(node, "consensus_distance") for name, node in run.nodes.items()}


def speed_curves(run: Run) -> dict[str, Curve]:
    window_s = max(LEAST_WINDOW_S, run.seconds / SPEED_WINDOWS)
    return {name: speed(node, window_s) for name, node in run.nodes.items()}


def speed(node: NodeLog, window_s: float) -> Curve:
    """Return the training steps per second of a node, over windows of at least this length.

    A window over a restart has the pause in it.
    """
    times, steps = node.times, node.figure("steps")
    known = np.isfinite(steps)
    times, steps = times[known], steps[known]
    edges = [0] if len(times) else []
    for index in range(1, len(times)):
        if times[index] - times[edges[-1]] >= window_s:
            edges.append(index)
    at, counted = times[edges], steps[edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (at[1:] + at[:-1]) / 2, np.diff(counted) / np.diff(at)


def draw_loss(figure: Figure, run: Run, looks: Looks) -> None:
    _draw(figure, run, looks, loss_curves(run), "training loss", "No node has told its loss.")


def draw_speed(figure: Figure, run: Run, looks: Looks) -> None:
    curves = speed_curves(run)
    axes = _draw(figure, run, looks, curves, "steps per second", "No node has taken steps.")
    if axes is not None:
        axes.set_ylim(bottom=0)


def draw_distance(figure: Figure, run: Run, looks: Looks) -> None:
    """Draw how far each node is from the peer that it has merged last."""
    missing = "No node has measured it: the adapters for PyTorch do,\nDpwaConnection does not."
    curves = distance_curves(run)
    _draw(figure, run, looks, curves, "consensus distance", missing)


def _draw(
    figure: Figure,
    run: Run,
    looks: Looks,
    curves: Mapping[str, Curve],
    height: str,
    missing: str,
) -> Axes | None:
    axes = figure.subplots()
    if not any(np.isfinite(values).any() for _, values in curves.values()):
        nothing(axes, missing)
        return None
    length, unit = time_unit(run.seconds)
    most = max(40, min(MOST_POINTS, MOST_POINTS_OF_ALL // len(curves)))
    for name, (times, values) in curves.items():
        at, thinned = sparse(times, values, most)
        if len(at):
            dots: dict[str, Any] = {"marker": "o", "markersize": 4} if len(at) == 1 else {}
            axes.plot((at - run.began) / length, thinned, **looks[name].line, **dots)
    is_crowded = any(not look.label for look in looks.values())
    if is_crowded:
        at, middle = middle_of(curves, np.nanmedian)
        axes.plot((at - run.began) / length, middle, color=INK, linewidth=1.6, zorder=4)
    scale(axes, np.concatenate([values for _, values in curves.values()]))
    axes.margins(x=0.01)
    is_log = axes.get_yscale() == "log"
    label(axes, f"{unit} since the start", height + (", log scale" if is_log else ""))
    handles = line_handles(looks, list(curves))
    if is_crowded:
        from matplotlib.lines import Line2D

        handles.insert(0, Line2D([], [], color=INK, linewidth=2, label="median"))
    legend(figure, handles, 3 if is_crowded else 4)
    return axes


def middle_of(
    curves: Mapping[str, Curve], middle: Callable[..., Floats], points: int = MOST_POINTS
) -> Curve:
    """Return the middle of several curves at each moment, of those that are there then.

    `middle` makes one value of many along an axis, and passes over NaN.
    """
    there = [(times, values) for times, values in curves.values() if len(times)]
    if not there:
        return np.empty(0), np.empty(0)
    grid = np.linspace(min(t[0] for t, _ in there), max(t[-1] for t, _ in there), points)
    rows = np.stack([at_each(grid, *curve) for curve in there])
    is_known = np.isfinite(rows).any(axis=0)
    rows[np.isinf(rows)] = np.nan
    is_known &= ~np.isnan(rows).all(axis=0)
    return grid[is_known], middle(rows[:, is_known], axis=0)


def at_each(grid: Floats, times: Floats, values: Floats) -> Floats:
    """Return the value of a curve at each moment; NaN before its begin and after its end."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(grid), np.nan)
    found: Floats = np.interp(grid, times[known], values[known], left=np.nan, right=np.nan)
    return found


def sparse(times: Floats, values: Floats, most: int) -> Curve:
    """Return at most so many points of a curve, the ends among them, without what is infinite."""
    values = np.where(np.isinf(values), np.nan, values)
    if len(times) > most:
        chosen = np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))
        times, values = times[chosen], values[chosen]
    known = ~np.isnan(values)
    return times[known], values[known]


def _curve(node: NodeLog, figure: str) -> Curve:
    values = node.rows[:, 1 + INDEX[figure]]
    known = ~np.isnan(values)
    return node.times[known], values[known]


def scale(axes: Axes, values: Floats) -> None:
    """Have a logarithmic axis where values differ by orders of magnitude."""
    finite = values[np.isfinite(values)]
    if finite.min() > 0 and finite.max() > LOG_ABOVE * finite.min():
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_yscale("log")
        is_short = finite.max() < SHORT_LOG * finite.min()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
