"""Writes a comparison of runs: a page that needs nothing else, and its pictures as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpwa import __version__
from dpwa.report.charts import Drawn, drawn
from dpwa.report.comparison import ComparedRun, common_loss, figures_of_run
from dpwa.report.comparison_charts import comparison_charts
from dpwa.report.files import folder_to_write
from dpwa.report.html import document, figures, paragraph, table
from dpwa.report.style import MOST_COLOURS, looks_of
from dpwa.report.wording import UNKNOWN, duration, moment, names, number, share, size
from dpwa.types import JsonObject

MOST_RUNS = MOST_COLOURS
PAGE_NAME = "compare.html"


def write_comparison(runs: Sequence[ComparedRun], loss: float | None, folder: Path) -> Path:
    """Write the page and the pictures into a folder, which is made if it is not there.

    Args:
        runs: at most `MOST_RUNS`.
        loss: that they are to reach; `None`: the lowest that all have.
        folder: to write into.

    Returns:
        Where the page is.

    Raises:
        UserError: it cannot be written.
    """
    looks = looks_of([run.label for run in runs], {})
    with folder_to_write(folder):
        pictures = list(drawn(comparison_charts(runs, looks), folder))
        page = document(f"{len(runs)} runs compared", _body(runs, loss, pictures))
        path = folder / PAGE_NAME
        path.write_text(page, encoding="utf-8")
    return path


def table_of(runs: Sequence[ComparedRun], loss: float | None) -> tuple[list[str], list[list[str]]]:
    """Return the headings, with the names of the runs, and a row for each figure.

    Args:
        runs: that are compared.
        loss: that they are to reach; `None`: the lowest that all have.
    """
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
