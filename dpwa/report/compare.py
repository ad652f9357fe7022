"""Writes a comparison of runs: a page that needs nothing else, and its pictures as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpwa import __version__
from dpwa.report.charts import Chart, Drawn, drawn
from dpwa.report.comparison import Band, ComparedRun, common_loss, figures_of_run
from dpwa.report.curves import scale
from dpwa.report.html import document, figures, paragraph, table
from dpwa.report.page import folder_to_write
from dpwa.report.style import (
    MOST_COLOURS,
    Looks,
    label,
    legend,
    line_handles,
    looks_of,
    nothing,
    time_unit,
)
from dpwa.report.wording import UNKNOWN, duration, moment, names, number, share, size
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


MOST_RUNS = MOST_COLOURS
PAGE_NAME = "compare.html"


def write_comparison(runs: Sequence[ComparedRun], loss: float | None, folder: Path) -> Path:
    """Write the page and the pictures into a folder, which is made; return where the page is.

    There are at most `MOST_RUNS` runs. `loss` is what they are to reach; `None`: the lowest that
    all have.
    """
    looks = looks_of([run.label for run in runs], {})
    with folder_to_write(folder):
        pictures = list(drawn(comparison_charts(runs, looks), folder))
        page = document(f"{len(runs)} runs compared", _body(runs, loss, pictures))
        path = folder / PAGE_NAME
        path.write_text(page, encoding="utf-8")
    return path


def table_of(runs: Sequence[ComparedRun], loss: float | None) -> tuple[list[str], list[list[str]]]:
    target = common_loss(runs) if loss is None else loss
    to_loss = f"to loss {number(target, 3)}"
    names = [
        *("nodes", "lost", "duration", "steps", "steps/s", "best loss", "last loss"),
        *(to_loss, "steps to it", "sent", "received", "mapped", "waiting"),
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
        *(size(found[f"{kind}_bytes"]) for kind in ("sent", "received", "mapped")),
        share(found["wait_share"]),
    ]


def _body(
    runs: Sequence[ComparedRun], loss: float | None, pictures: Sequence[Drawn]
) -> Iterator[str]:
    labels = [run.label for run in runs]
    yield f"<header><h1>{len(runs)} runs compared</h1>"
    yield paragraph(names(labels, len(labels)), "faint")
    yield '</header><main><section aria-labelledby="summary"><h2 id="summary">Summary</h2>'
    yield from (paragraph(sentence) for sentence in sentences(runs, loss))
    yield table("The runs", *table_of(runs, loss))
    yield '</section><section aria-labelledby="pictures"><h2 id="pictures">Pictures</h2>'
    yield figures(pictures)
    yield "</section></main><footer>"
    for run in runs:
        began = moment(run.facts.run.began)
        remarks = "".join(f" {remark}." for remark in run.facts.run.remarks)
        yield paragraph(f"{run.label} began at {began}.{remarks}")
    yield paragraph(f"Made by dpwa {__version__}.")
    yield "</footer>"


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
