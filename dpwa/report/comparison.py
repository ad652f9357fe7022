"""Several runs beside each other: their losses, speeds, bytes and waits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from dpwa.observe.history import Floats
from dpwa.report.bars import shares_of, traffic_of
from dpwa.report.curves import Curve, at_each, speed_curves
from dpwa.report.facts import Facts
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

POINTS = 240  # of each curve
MOST_NODES = 0.5  # of a run: where fewer are, a mean would leap


@dataclass(frozen=True)
class Band:
    """A value of all nodes of a run: its mean, and between which values it lies."""

    at: Floats  # seconds since the start, or steps of a node; shape `(points,)`
    mean: Floats  # of the nodes that are there then
    low: Floats
    high: Floats


@dataclass(frozen=True)
class ComparedRun:
    label: str  # a name that no other of them has
    facts: Facts
    loss_by_time: Band  # by seconds since its start
    loss_by_steps: Band  # by steps that a node has taken
    speed: Band  # steps per second of a node, by seconds since its start
    moved: Curve  # bytes that were merged by all nodes until then, by seconds since its start

    @property
    def lowest(self) -> float:
        """The lowest mean loss of its nodes; NaN: no loss is known."""
        return (
            float(np.min(self.loss_by_time.mean, initial=math.inf)) if self.has_loss else math.nan
        )

    @property
    def has_loss(self) -> bool:
        return len(self.loss_by_time.mean) > 0

    def reached(self, loss: float) -> tuple[float | None, float | None]:
        """Return after how many seconds, and steps of a node, the nodes' mean loss was this; or
        `None`.
        """
        return _first_below(self.loss_by_time, loss), _first_below(self.loss_by_steps, loss)


def compared(label: str, facts: Facts) -> ComparedRun:
    run = facts.run
    losses, by_steps = {}, {}
    for name, node in run.nodes.items():
        values, steps = node.figure("loss"), node.figure("steps")
        known = np.isfinite(values) & np.isfinite(steps)
        losses[name] = (node.times[known] - run.began, values[known])
        by_steps[name] = (steps[known], values[known])
    speeds = {n: (at - run.began, values) for n, (at, values) in speed_curves(run).items()}
    return ComparedRun(
        label=label,
        facts=facts,
        loss_by_time=_band(losses.values()),
        loss_by_steps=_band(by_steps.values(), MOST_NODES),
        speed=_band(speeds.values(), MOST_NODES),
        moved=_moved(facts),
    )


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: the last part of its path, or more of it if need be."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(set(paths)):
            break
    seen: dict[str, int] = {}
    unique = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        unique.append(printable(label if seen[label] == 1 else f"{label} ({seen[label]})"))
    return unique


def common_loss(runs: Sequence[ComparedRun]) -> float | None:
    """Return the lowest mean loss that all runs have reached; `None`: no loss is known."""
    known = [run.lowest for run in runs if run.has_loss]
    return max(known, default=None)


def figures_of_run(run: ComparedRun, loss: float | None) -> JsonObject:
    facts = run.facts
    logs = [node.log for node in facts.nodes.values()]
    seconds, steps = (None, None) if loss is None else run.reached(loss)
    speeds = [s for node in facts.nodes.values() if (s := node.rates.steps_per_s) is not None]
    waits = [shares["wait"] for log in logs if (shares := shares_of(log))]
    traffic = [traffic_of(log) for log in logs]
    best = facts.best
    return {
        "run": run.label,
        "folder": str(facts.run.folder),
        "nodes": len(logs),
        "lost": sorted(name for name, node in facts.nodes.items() if node.is_("gone")),
        "slow": sorted(name for name, node in facts.nodes.items() if node.is_("slow")),
        "seconds": facts.run.seconds,
        "steps": facts.steps,
        "steps_per_s": median(speeds) if speeds else None,
        "best_loss": best.log.best.loss if best and best.log.best else None,
        "last_loss": fmean(facts.losses) if facts.losses else None,
        "seconds_to_loss": seconds,
        "steps_to_loss": steps,
        "merges": sum(log.total("merges") for log in logs),
        **{f"{k}_bytes": sum(t[k] for t in traffic) for k in ("sent", "received", "mapped")},
        "wait_share": fmean(waits) if waits else None,
    }


def _first_below(band: Band, loss: float) -> float | None:
    found = np.nonzero(band.mean <= loss)[0]
    return float(band.at[found[0]]) if len(found) else None


def _band(curves: Iterable[Curve], least_share: float = 0.0) -> Band:
    """Return a band over curves, where at least this share of them is there."""
    there = [(at, values) for at, values in curves if len(at)]
    if not there:
        return Band(*[np.empty(0)] * 4)
    grid = np.linspace(min(a[0] for a, _ in there), max(a[-1] for a, _ in there), POINTS)
    rows = np.stack([at_each(grid, at, values) for at, values in there])
    known = np.isfinite(rows).sum(axis=0) >= max(1.0, least_share * len(rows))
    rows, grid = rows[:, known], grid[known]
    return Band(grid, np.nanmean(rows, axis=0), np.nanmin(rows, axis=0), np.nanmax(rows, axis=0))


def _moved(facts: Facts) -> Curve:
    run = facts.run
    grid = np.linspace(0.0, max(run.seconds, 1e-3), POINTS)
    total = np.zeros(len(grid))
    for node in run.nodes.values():
        values = node.figure("merged_bytes")
        known = np.isfinite(values)
        if known.any():
            total += np.interp(grid, node.times[known] - run.began, values[known], left=0.0)
    return grid, total
