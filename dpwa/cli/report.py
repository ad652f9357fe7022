"""`dpwa report` makes a page about a run from its run logs, or a page that compares runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.query_options import JsonOption, RunNumber
from dpwa.errors import from_extra

if TYPE_CHECKING:
    from dpwa.report.facts import Facts


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR",
            help="The folder with the run logs of a run. Give several folders to compare runs.",
        ),
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="The folder to write the page to. The default is RUN_DIR/report, or the folder "
            "`comparison` for several runs.",
        ),
    ] = None,
    number: RunNumber = None,
    loss: Annotated[
        float | None,
        typer.Option(
            metavar="L",
            help="Compare the times that the runs needed to reach a mean loss of L. The default is "
            "the lowest mean loss that all runs reached.",
        ),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a page about a run from the run logs of its nodes (`run_log`).

    The page shows slow nodes, lost nodes, losses and speeds. With several folders, the page
    compares the runs: their losses, speeds and sent bytes, and the times until they reached a loss.

    The page is one HTML file that needs no other file. Each picture is also written as a PNG file.
    If a run has not ended, the page shows the run so far. The command needs matplotlib (the extra
    `plot`).

    Examples:
        dpwa report runs/1
        dpwa report runs/1 -o /tmp/report --open
        dpwa report runs/gossip runs/push_sum --loss 0.25
    """
    from dpwa.report.page import common_loss, findings, labels_of, sentences, table_of, write_report

    with from_extra("plot", "dpwa report needs matplotlib [DPWA-E285]"):
        import matplotlib  # noqa: F401  (an error before the slow work)
    read = [_facts(folder, number) for folder in folders]
    runs = dict(zip(labels_of(folders), read, strict=True))
    default = Path("comparison") if len(runs) > 1 else folders[0] / "report"
    page = write_report(runs, loss, out_dir or default)
    if as_json:
        target = common_loss(runs) if loss is None else loss
        found = [{"run": label, **facts.figures(target)} for label, facts in runs.items()]
        typer.echo(json.dumps({"loss": target, "runs": found}))
    else:
        console = screen.console()
        if len(runs) > 1:
            headings, rows = table_of(runs, loss)
            right = range(1, len(headings))
            console.print(screen.table(headings, rows, console.width, right=right))
        for sentence in sentences(runs, loss):
            console.print(screen.plain(sentence))
        for name, verdict in findings(runs):
            console.print(screen.plain(f"- {name} {verdict.text}" if name else f"- {verdict.text}"))
    typer.echo(f"Report: {page}", err=as_json)
    if is_opened:
        screen.open_browser(page.resolve().as_uri())


def _facts(folder: Path, number: int | None) -> Facts:
    from rich.progress import BarColumn, Progress, TextColumn

    from dpwa.observe.run_log_reader import read_run
    from dpwa.report.facts import facts_of

    console = screen.console(is_result=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    is_hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bars:
        task = bars.add_task(f"reading {folder}", total=None)
        run = read_run(folder, number, lambda n, of: bars.update(task, completed=n, total=of))
    for remark in run.remarks:
        typer.echo(f"dpwa: {remark}", err=True)
    if len(run.spans) > 1:
        text = f"dpwa: {folder} has {len(run.spans)} runs. Reading run number {run.number}"
        typer.echo(text, err=True)
    return facts_of(run, time.time())
