"""Several runs beside each other: their figures, in words, and as a page with pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from dpwa import __version__
from dpwa.files import written
from dpwa.observe.history import Floats
from dpwa.report.charts import Curve, at_each, shares_of, speed_curves, traffic_of
from dpwa.report.facts import Facts
from dpwa.report.page import folder_to_write, rendered
from dpwa.report.style import (
    MOST_COLOURS,
    Chart,
    Drawn,
    Looks,
    drawn,
    label,
    legend,
    line_handles,
    looks_of,
    nothing,
    scale,
    time_unit,
)
from dpwa.report.wording import UNKNOWN, duration, moment, names, number, share, size
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RUNS = MOST_COLOURS
PAGE_NAME = "compare.html"
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

        The steps are those that the nodes had taken by then, on average.
        """
        seconds = _first_below(self.loss_by_time, loss)
        return seconds, None if seconds is None else self._steps_after(seconds)

    def _steps_after(self, seconds: float) -> float | None:
        run, taken = self.facts.run, []
        for node in run.nodes.values():
            steps = node.figure("steps")
            known = np.isfinite(steps)
            if known.any():
                taken.append(np.interp(run.began + seconds, node.times[known], steps[known]))
        return float(np.mean(taken)) if taken else None


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
        loss_by_steps=_band(by_steps.values()),
        speed=_band(speeds.values()),
        moved=_moved(facts),
    )


def _first_below(band: Band, loss: float) -> float | None:
    found = np.nonzero(band.mean <= loss)[0]
    return float(band.at[found[0]]) if len(found) else None


def _band(curves: Iterable[Curve]) -> Band:
    """Return a band over curves, where most of them are there."""
    there = [(at, values) for at, values in curves if len(at)]
    if not there:
        return Band(*[np.empty(0)] * 4)
    grid = np.linspace(min(a[0] for a, _ in there), max(a[-1] for a, _ in there), POINTS)
    rows = np.stack([at_each(grid, at, values) for at, values in there])
    known = np.isfinite(rows).sum(axis=0) >= MOST_NODES * len(rows)
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


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: the last part of its path, or more of it if need be."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(set(paths)):
            break
    seen: dict[str, int] = {}
    unique = []
    for name in labels:
        seen[name] = seen.get(name, 0) + 1
        unique.append(printable(name if seen[name] == 1 else f"{name} ({seen[name]})"))
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
        "rounds": sum(log.total("rounds") for log in logs),
        **{f"{k}_bytes": sum(t[k] for t in traffic) for k in ("sent", "received", "mapped")},
        "wait_share": fmean(waits) if waits else None,
    }


def sentences(runs: Sequence[ComparedRun], loss: float | None) -> Iterator[str]:
    """Yield in words which run was the first at a loss, and which got the lowest."""
    target = common_loss(runs) if loss is None else loss
    if target is None:
        yield "No run has told a loss."
        return
    found = {run.label: run.reached(target)[0] for run in runs}
    times = {label: seconds for label, seconds in found.items() if seconds is not None}
    which = "the lowest mean loss that all have reached" if loss is None else "a mean loss"
    if times:
        first = min(times, key=lambda label: times[label])
        others = [f"{n} after {duration(s)}" for n, s in times.items() if n != first]
        rest = f", {names(others, len(others))}" if others else ""
        what = f"{which}, {number(target)}," if loss is None else f"{which} of {number(target)}"
        yield f"{first} was the first at {what} after {duration(times[first])}{rest}."
    never = [label for label, seconds in found.items() if seconds is None]
    if never:
        yield f"{names(never)} never had a mean loss of {number(target)}."
    best = min((run for run in runs if run.has_loss), key=lambda run: run.lowest)
    yield f"The lowest mean loss of all is {number(best.lowest)}, of {best.label}."


def table_of(runs: Sequence[ComparedRun], loss: float | None) -> tuple[list[str], list[list[str]]]:
    target = common_loss(runs) if loss is None else loss
    to_loss = f"to loss {number(target, 3)}"
    names = [
        *("nodes", "lost", "duration", "steps", "steps/s", "best loss", "last loss"),
        *(to_loss, "steps to it", "merges", "rounds", "sent", "received", "mapped", "waiting"),
    ]
    columns = [_column(figures_of_run(run, target)) for run in runs]
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    return ["figure", *(run.label for run in runs)], rows


def _column(found: JsonObject) -> list[str]:
    seconds, steps = found["seconds_to_loss"], found["steps_to_loss"]
    return [
        str(found["nodes"]),
        str(len(found["lost"])),
        duration(found["seconds"]),
        f"{found['steps']:,.0f}",
        number(found["steps_per_s"], 3),
        number(found["best_loss"]),
        number(found["last_loss"]),
        "never" if seconds is None else duration(seconds),
        UNKNOWN if steps is None else f"{steps:,.0f}",
        *(f"{found[kind]:,.0f}" for kind in ("merges", "rounds")),
        *(size(found[f"{kind}_bytes"]) for kind in ("sent", "received", "mapped")),
        share(found["wait_share"]),
    ]


def write_comparison(runs: Sequence[ComparedRun], loss: float | None, folder: Path) -> Path:
    """Write the page and the pictures into a folder, which is made; return where the page is.

    There are at most `MOST_RUNS` runs. `loss` is what they are to reach; `None`: the lowest that
    all have.
    """
    looks = looks_of([run.label for run in runs], {})
    with folder_to_write(folder):
        pictures = list(drawn(comparison_charts(runs, looks), folder))
        path = folder / PAGE_NAME
        with written(path) as out:
            out.write(comparison_page(runs, loss, pictures).encode())
    return path


def comparison_page(
    runs: Sequence[ComparedRun], loss: float | None, pictures: Sequence[Drawn]
) -> str:
    labels = [run.label for run in runs]
    headings, rows = table_of(runs, loss)
    return rendered(
        "compare.html",
        title=f"{len(runs)} runs compared",
        about=names(labels, len(labels)),
        sentences=sentences(runs, loss),
        headings=headings,
        rows=rows,
        pictures=pictures,
        notes=[*map(_note, runs), f"Made by dpwa {__version__}."],
    )


def _note(run: ComparedRun) -> str:
    remarks = "".join(f" {remark}." for remark in run.facts.run.remarks)
    return f"{run.label} began at {moment(run.facts.run.began)}.{remarks}"


def comparison_charts(runs: Sequence[ComparedRun], looks: Looks) -> list[Chart]:
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
            "Bytes that all nodes have taken in",
            "Snapshots that were merged, and values in collectives, such as the gradients of "
            "together: received or mapped, added up.",
            _alt(runs, "bytes taken in", lambda run: size(float(run.moved[1][-1]))),
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
