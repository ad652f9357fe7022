"""`dpwa report` and `dpwa compare`: what came of a run, and of several, from their run logs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.asking import JsonOption, RunDir, RunNumber
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.report.facts import Facts

SAYS_AFTER_S = 2.0
SAYS_EVERY_S = 2.0

OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    folder: RunDir,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Where to write to; RUN_DIR/report otherwise."
        ),
    ] = None,
    number: RunNumber = None,
    is_opened: OpenOption = False,
) -> None:
    """Make a page of what nodes have written down with `run_log`: who was slow, who was lost.

    The page is one HTML file that needs nothing else, with pictures of losses, speeds, waits,
    merges, bytes and events. Beside it each picture is a PNG. A run that is still at work is shown
    as it is now. This needs matplotlib (the extra `plot`).

    Examples:
        dpwa report runs/1
        dpwa report runs/1 -o /tmp/report --open
    """
    from dpwa.report.page import findings, sentences, write_report
    from dpwa.report.style import require_matplotlib

    require_matplotlib("report")
    facts = _facts(folder, number)
    page = write_report(facts, folder / "report" if out_dir is None else out_dir)
    console = screen.console()
    for sentence in sentences(facts):
        console.print(screen.plain(sentence))
    for name, verdict in findings(facts):
        console.print(screen.plain(f"- {name} {verdict.text}" if name else f"- {verdict.text}"))
    _warn_of_others(facts)
    console.print(screen.plain(f"Report: {page}"))
    if is_opened:
        _open(page)


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR", help="Folders of run logs, 2 to 8.")
    ],
    out_dir: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write to.")
    ] = Path("comparison"),
    loss: Annotated[
        float | None,
        typer.Option(
            metavar="L",
            help="How long did each run take to a mean loss of L? Otherwise to the lowest that "
            "all have reached.",
        ),
    ] = None,
    is_opened: OpenOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lay several runs over each other: losses, time to a loss, speeds, bytes, waits.

    Of each folder the newest run is taken. The page is one HTML file that needs nothing else;
    beside it each picture is a PNG. This needs matplotlib (the extra `plot`).

    Examples:
        dpwa compare runs/gossip runs/push_sum
        dpwa compare runs/1 runs/2 runs/3 --loss 0.25 --json
    """
    from dpwa.report.compare import (
        MOST_RUNS,
        common_loss,
        compared,
        figures_of_run,
        labels_of,
        sentences,
        table_of,
        write_comparison,
    )
    from dpwa.report.style import require_matplotlib

    if not 2 <= len(folders) <= MOST_RUNS:
        raise UserError(
            f"compare: expected 2 to {MOST_RUNS} run directories (got {len(folders)}) [DPWA-E284]"
        )
    require_matplotlib("compare")
    labels = labels_of(folders)
    runs = [compared(label, _facts(f, None)) for label, f in zip(labels, folders, strict=True)]
    page = write_comparison(runs, loss, out_dir)
    for run in runs:
        _warn_of_others(run.facts)
    if as_json:
        target = common_loss(runs) if loss is None else loss
        found = [figures_of_run(run, target) for run in runs]
        typer.echo(json.dumps({"loss": target, "runs": found}))
    else:
        console = screen.console()
        headings, rows = table_of(runs, loss)
        numbers = range(1, len(headings))
        console.print(screen.table(headings, rows, console.width, right=numbers))
        for sentence in sentences(runs, loss):
            console.print(screen.plain(sentence))
    typer.echo(f"Comparison: {page}", err=as_json)
    if is_opened:
        _open(page)


class _ReadingProgress:
    """Says on standard error how much was read, if that takes longer than a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._due = time.monotonic() + SAYS_AFTER_S
        self._has_said = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() < self._due and not (self._has_said and done == total):
            return
        self._due = time.monotonic() + SAYS_EVERY_S
        self._has_said = True
        text = f"reading {self._folder}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            typer.echo(f"\r{text}{end}", err=True, nl=False)
        else:
            typer.echo(text, err=True)


def _facts(folder: Path, number: int | None) -> Facts:
    from dpwa.observe.run_reading import read_run
    from dpwa.report.facts import facts_of

    run = read_run(folder, number, _ReadingProgress(folder))
    for remark in run.remarks:
        typer.echo(f"dpwa: {remark}", err=True)
    return facts_of(run, time.time())


def _warn_of_others(facts: Facts) -> None:
    run = facts.run
    if len(run.spans) > 1:
        typer.echo(
            f"dpwa: {run.folder} has {len(run.spans)} runs; this is number {run.number}", err=True
        )


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"dpwa: there is no browser here; open {page.resolve()} in one", err=True)
