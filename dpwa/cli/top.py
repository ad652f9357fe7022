"""`dpwa top` shows all nodes of a run live on a terminal, with their problems and the reasons."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpwa.cli import exit_codes, query_options, screen
from dpwa.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from dpwa.cli.top_page import ViewChoices
    from dpwa.observe.events import RunEvent
    from dpwa.observe.rows import NodeRow
    from dpwa.observe.run_view import RunView
    from dpwa.observe.watch import Watch
    from dpwa.types import JsonObject

FIRST_ANSWERS_S = 3.0
LINES_OF_A_KEY = {"up": -1, "k": -1, "down": 1, "j": 1}


def top(
    config: query_options.RunOption = None,
    at: query_options.AtOption = None,
    as_name: query_options.AsOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and exit.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a JSON object at each update, or one object with --once."
        ),
    ] = False,
    interval: query_options.IntervalOption = 1.0,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="The column to sort by: name, state, loss, clock, taken, steps, rounds, wait, "
            "in, out, mapped, staleness, distance or score.",
        ),
    ] = "name",
) -> None:
    """Watch all nodes of a run: loss, speed, traffic, and the problems of each node.

    The command needs only one node that answers, because each node reports on the others. If this
    node dies, the command asks a different node.

    On a terminal, press ? to see the keys. q or Ctrl-C ends the command. X marks nodes that have
    stopped taking part, or that harm others. An exclamation mark marks smaller problems. The
    reasons are below the table. If the output is not a terminal, the command prints a new table at
    each update. docs/watch.md explains the table.

    The exit code is 3 if --once finds no node that answers.

    Examples:
        dpwa top
        dpwa top -c nodes.yaml --sort steps
        dpwa top --at 10.0.0.1:7000 --once --json
    """
    from dpwa.cli.top_page import SORTS, ViewChoices

    if sort not in SORTS:
        raise UserError(f"--sort: expected one of {', '.join(SORTS)} (got {sort}) [DPWA-E287]")
    look = ViewChoices(sort)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for curves, if the locale has only ASCII
    if config is None and at is None:
        run = query_options.run_here(query_options.OR_AT)
        config, look.command = run.config, run.command
    try:
        with query_options.watch(config, at, as_name) as watch:
            if once:
                _show_once(watch, look, as_json=as_json)
            elif screen.is_watched() and not as_json:
                _show_live(watch, look, interval)
            else:
                _show_plainly(watch, look, interval, as_json=as_json)
    except KeyboardInterrupt:
        return


def _show_once(watch: Watch, look: ViewChoices, *, as_json: bool) -> None:
    view = watch.wait_for_answers(FIRST_ANSWERS_S)
    has_answer = any(node.answer is not None for node in view.nodes)
    if as_json or has_answer:
        _print(view, look, as_json=as_json)
    if not has_answer:
        tried = ", ".join(
            f"{node.endpoint} ({node.problem or 'no answer in time'})" for node in view.nodes
        )
        typer.echo(f"dpwa: no node answers. The command asked {tried}", err=True)
        raise typer.Exit(exit_codes.UNREACHABLE)


def _show_plainly(watch: Watch, look: ViewChoices, interval_s: float, *, as_json: bool) -> None:
    """Print the nodes at each interval, with the events since the previous output."""
    known: set[RunEvent] = set()
    view = watch.wait_for_answers(FIRST_ANSWERS_S)
    while True:
        _print(view, look, as_json=as_json, known=known)
        if not as_json:
            typer.echo()
        sys.stdout.flush()
        known = set(view.events)
        time.sleep(interval_s)
        view = watch.view()


def _print(
    view: RunView, look: ViewChoices, *, as_json: bool, known: Collection[RunEvent] = frozenset()
) -> None:
    from dpwa.cli.top_page import Shown, printed
    from dpwa.observe.rows import rows_of

    rows, events = rows_of(view), [event for event in view.events if event not in known]
    if as_json:
        typer.echo(json.dumps(_plain_data(view, rows, events), allow_nan=False))
        return
    console = screen.console()
    for line in printed(Shown(view, rows, events), look, console.width):
        console.print(line, no_wrap=True, crop=False, overflow="ignore")


def _plain_data(view: RunView, rows: Iterable[NodeRow], events: Iterable[RunEvent]) -> JsonObject:
    """Return all values of a run for the JSON output. NaN and infinite numbers become `None`."""
    endpoints = {node.name: node.endpoint for node in view.nodes}
    found: JsonObject = _finite(
        {
            "time": view.time,
            "through": view.through,
            "nodes": [{**asdict(row), "endpoint": endpoints[row.name]} for row in rows],
            "events": [asdict(event) for event in events],
        }
    )
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show_live(watch: Watch, look: ViewChoices, interval_s: float) -> None:
    """Redraw the screen with the newest values at each interval, until the user quits."""
    from rich.console import Group

    from dpwa.cli.top_page import Shown, screen_of
    from dpwa.cli.top_terminal import open_terminal
    from dpwa.observe.rows import rows_of

    console = _live_console()
    with open_terminal(console) as terminal:
        began, due, shown = time.monotonic(), 0.0, None
        while terminal.ended_by is None:
            now = time.monotonic()
            if shown is None or now >= due:
                view = watch.view()
                shown = Shown(view, rows_of(view), view.events)
                is_new = not view.through and now - began < FIRST_ANSWERS_S
                due = now + (query_options.MIN_INTERVAL_S if is_new else interval_s)
            terminal.show(Group(*screen_of(shown, look, *console.size)))
            for key in terminal.keys(due - time.monotonic()):
                if key == "q":
                    return
                press(look, key)


def _live_console() -> Console:
    """Return a console that follows the size of the terminal, even if COLUMNS or LINES is set."""
    from rich.console import Console

    fixed = ("COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in fixed}
    has_no_colours = environment.get("TERM", "").startswith(("vt1", "vt2"))
    return Console(highlight=False, no_color=has_no_colours or None, _environ=environment)


def press(look: ViewChoices, key: str) -> None:
    from dpwa.cli.top_page import SORTS

    pages = {"?": "keys", "h": "keys", "v": "matters", "e": "events"}
    sorts = {pressed: name for name, pressed in SORTS.items()}
    if key in pages or key == "escape":
        page = pages.get(key, "nodes")
        look.page, look.first = ("nodes" if look.page == page else page), 0
    elif key in LINES_OF_A_KEY:
        look.first = max(look.first + LINES_OF_A_KEY[key], 0)
    elif key in ("page down", " "):
        look.first += look.visible
    elif key in ("page up", "b"):
        look.first = max(look.first - look.visible, 0)
    elif key in ("home", "end"):
        look.first = 0 if key == "home" else 1_000_000
    elif key == "r":
        look.is_reversed, look.first = not look.is_reversed, 0
    elif key in sorts:
        same = look.sort == sorts[key]
        look.sort, look.is_reversed, look.first = sorts[key], same and not look.is_reversed, 0
