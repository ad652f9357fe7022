"""Compute the figures of a run, and make the table and the picture of a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

Records = Mapping[int, Sequence[Mapping[str, Any]]]  # the lines of each worker's file, by its index
TARGETS = ("2.0", "1.8")
STALE_S = 10.0  # the mean leaves out a worker that has not evaluated for this time
NEAR_S = 2.0  # a pause that begins within this time after a kill is due to the kill


def figures_of(records: Records, plan: Mapping[str, Any], kills: Sequence[Any]) -> dict[str, Any]:
    """Return the curve of held-out losses, the speeds, and the lost time after each kill."""
    seconds = plan["seconds"]
    steps = {
        worker: [row for row in rows if row["event"] == "step" and row["t"] <= seconds]
        for worker, rows in records.items()
    }
    every = [row for rows in steps.values() for row in rows]
    curve = list(_curve(records, plan))
    return {
        "curve": curve,
        "reached": {target: _reached(curve, float(target)) for target in TARGETS},
        "steps_per_s": len(every) / seconds,
        "steps_of_workers": {worker: len(rows) for worker, rows in steps.items()},
        "discarded": sum(bool(row.get("discarded")) for row in every),
        "kills": [_cost(kill, kills, steps, seconds) for kill in kills],
    }


def _curve(records: Records, plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the mean and the worst of the workers' last losses, at each time of evaluation."""
    every = plan["evaluate_s"]
    for number in range(1, int(plan["seconds"] / every) + 1):
        mark = number * every
        latest = {}
        for worker, rows in records.items():
            for row in rows:
                if row["event"] == "loss" and mark - STALE_S < row["mark"] <= mark:
                    latest[worker] = row
        if latest:
            losses = [row["loss"] for row in latest.values()]
            yield {
                "s": mark,
                "loss": fmean(losses),
                "worst": max(losses),
                "step": fmean(row["step"] for row in latest.values()),
                "workers": len(latest),
            }


def _reached(curve: Sequence[Mapping[str, Any]], target: float) -> dict[str, float] | None:
    """Return the interpolated time and step at which the mean loss first reaches the target."""
    for before, after in pairwise(curve):
        if before["loss"] > target >= after["loss"]:
            share = (before["loss"] - target) / (before["loss"] - after["loss"])
            return {key: before[key] + share * (after[key] - before[key]) for key in ("s", "step")}
    return None


def _cost(
    kill: Mapping[str, Any], kills: Sequence[Mapping[str, Any]], steps: Records, end: float
) -> dict[str, Any]:
    """Return the time until the killed worker's next step, and the longest pause of the others."""
    at, pauses = kill["s"], [0.0]
    back = [row["t"] for row in steps.get(kill["worker"], ()) if row["t"] > at]
    for worker, rows in steps.items():
        deaths = [each["s"] for each in kills if each["worker"] == worker]
        for before, after in pairwise([*(row["t"] for row in rows), end]):
            was_killed = any(before < death < after for death in deaths)
            if before < at + NEAR_S and at < after and not was_killed:
                pauses.append(after - before)
    return {**kill, "back_s": back[0] - at if back else None, "pause_s": max(pauses)}


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with the medians over the runs of each system."""
    marks = [t for t in (30, 60, 90) if t <= runs[0]["seconds"]] or [runs[0]["curve"][-1]["s"]]
    titles = ["system", "runs", *(f"loss at {t:g} s" for t in marks), "worst", "steps/s"]
    titles += [f"{unit} to {target}" for unit in ("steps", "s") for target in TARGETS]
    titles += ["s until back", "longest pause, s", "cores of others"]
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|--:" * (len(titles) - 1) + "|"]
    for name in dict.fromkeys(run["system"] for run in runs):
        own = [run for run in runs if run["system"] == name]
        lines.append(f"| {name} | {len(own)} | " + " | ".join(_cells(own, marks)) + " |")
    return "\n".join(lines)


def _cells(runs: Sequence[Mapping[str, Any]], marks: Sequence[float]) -> Iterator[str]:
    for mark in marks:
        yield _median([p["loss"] for run in runs for p in run["curve"] if p["s"] == mark], 3)
    yield _median([run["curve"][-1]["worst"] for run in runs if run["curve"]], 3)
    yield _median([run["steps_per_s"] for run in runs], 1)
    for key, digits in (("step", 0), ("s", 1)):
        for target in TARGETS:
            found = [run["reached"][target] for run in runs]
            yield _median([each[key] for each in found if each], digits, len(runs))
    kills = [kill for run in runs for kill in run["kills"]]
    yield _median([kill["back_s"] for kill in kills if kill["back_s"] is not None], 1)
    yield _median([kill["pause_s"] for kill in kills], 1)
    yield _median([run["others_cores"] for run in runs], 1)


def _median(values: Sequence[float], digits: int, of: int = 0) -> str:
    """Return the median, or a dash if fewer than half of the runs have a value."""
    return f"{median(values):.{digits}f}" if values and 2 * len(values) > of else "-"


def draw(runs: Sequence[Mapping[str, Any]], order: Sequence[str], path: Path) -> None:
    """Draw the median loss of each system over time. Dotted lines show the kills."""
    from dpwa.report import style

    looks = {
        name: style.LineStyle(
            style.PALETTE[i % len(style.PALETTE)], ("-", "--")[i // len(style.PALETTE) % 2], name
        )
        for i, name in enumerate(order)
    }
    names = [name for name in order if any(run["system"] == name for run in runs)]
    with style.drawing():
        figure = style.new_figure(4.2, 7.5)
        axes = figure.subplots()
        for name in names:
            points = [p for run in runs if run["system"] == name for p in run["curve"]]
            times = sorted({p["s"] for p in points})
            losses = [median([p["loss"] for p in points if p["s"] == t]) for t in times]
            axes.plot(times, losses, marker="o", markersize=2.5, **looks[name].line)
        for at in sorted({round(kill["s"]) for run in runs for kill in run["kills"]}):
            axes.axvline(at, color="#999999", linewidth=0.7, linestyle=":")
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, low + 1.5))  # cut off the high losses at the start
        style.label(axes, "seconds", "held-out loss, nats per byte")
        style.legend(figure, style.line_handles(looks, names), 5)
        style.save_png(figure, path)
