"""Pure functions that compute curves of nodes, and bands of the mean and range over nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpwa.observe.history import Floats
from dpwa.observe.run_log_contents import Run

POINTS = 240  # of each curve
MAX_POINTS_OF_ALL = 8_000
SPEED_WINDOWS = 60  # windows of a run, with one speed for each
MIN_WINDOW_S = 3.0
MIN_PRESENT = 0.5  # share of the nodes that a mean needs, because fewer would make it jump
Curve = tuple[Floats, Floats]  # seconds since the start or steps of the node, and values


@dataclass(frozen=True)
class Band:
    """The mean, minimum and maximum of a value over several nodes."""

    at: Floats  # all fields have the shape `(points,)`
    mean: Floats
    low: Floats
    high: Floats


def curves_of(run: Run, figure: str) -> dict[str, Curve]:
    """Return each node's curve of the value named `figure`, over the seconds since the start."""
    return {name: _known(n.times - run.began, n.figure(figure)) for name, n in run.nodes.items()}


def loss_by_steps(run: Run) -> dict[str, Curve]:
    return {name: _known(n.figure("steps"), n.figure("loss")) for name, n in run.nodes.items()}


def speed_curves(run: Run) -> dict[str, Curve]:
    """Return the training steps per second of each node, including the pause of a restart."""
    window_s = max(min(MIN_WINDOW_S, run.seconds / 4), run.seconds / SPEED_WINDOWS)
    return {name: _speed(curve, window_s) for name, curve in curves_of(run, "steps").items()}


def _speed(curve: Curve, window_s: float) -> Curve:
    at, steps = curve
    if not len(at) or window_s <= 0:
        return np.empty(0), np.empty(0)
    edges = np.arange(at[0], at[-1] + 1e-6, window_s)
    return (edges[1:] + edges[:-1]) / 2, np.diff(np.interp(edges, at, steps)) / window_s


def _known(at: Floats, values: Floats) -> Curve:
    """Leave out unknown values, and the infinite values of diverged nodes."""
    known = np.isfinite(at) & np.isfinite(values)
    return at[known], values[known]


def as_bands(curves: dict[str, Curve]) -> dict[str, Band]:
    """Return each curve, with a limited number of points, as a band without width."""
    most = max(40, min(POINTS, MAX_POINTS_OF_ALL // len(curves)))
    found = {}
    for name, (at, values) in curves.items():
        every = slice(None, None, -(-len(at) // most) or 1)
        thin = values[::-1][every]  # starts at the end to keep the last value
        found[name] = Band(at[::-1][every], thin, thin, thin)
    return found


def band_of(curves: Mapping[str, Curve]) -> Band:
    """Return a band over curves, at the times when most curves have values."""
    there = [curve for curve in curves.values() if len(curve[0])]
    if not there:
        return Band(*[np.empty(0)] * 4)
    grid = np.linspace(min(at[0] for at, _ in there), max(at[-1] for at, _ in there), POINTS)
    rows = np.stack([np.interp(grid, *c, left=np.nan, right=np.nan) for c in there])
    is_there = np.isfinite(rows).sum(axis=0) >= MIN_PRESENT * len(rows)
    rows, grid = rows[:, is_there], grid[is_there]
    return Band(grid, np.nanmean(rows, axis=0), np.nanmin(rows, axis=0), np.nanmax(rows, axis=0))


def taken_in(run: Run) -> Band:
    """Return the bytes that all nodes together had merged at each moment."""
    grid = np.linspace(0.0, max(run.seconds, 1e-3), POINTS)
    curves = [c for c in curves_of(run, "merged_bytes").values() if len(c[0])]
    total = np.sum([np.interp(grid, *c, left=0.0) for c in curves], axis=0) + np.zeros(POINTS)
    return Band(grid, total, total, total)
