"""Lays out the screen of `dpwa top`. Pure functions turn the values of a run into lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dpwa.config.problems import listing
from dpwa.observe.events import RunEvent
from dpwa.observe.rows import NodeRow, groups, missing
from dpwa.observe.run_log_reader import natural_order
from dpwa.observe.run_view import RunView
from dpwa.observe.verdicts import MAX_NAMES
from dpwa.report.wording import clock, number, plural, share, size
from dpwa.wire.messages import printable

STYLES = {"X": "red", "!": "yellow", "?": "dim", " ": ""}
SIGNS = {"bad": "X", "odd": "!"}
MIN_ROWS = 3
SHARE_OF_MATTERS = 3  # problems may always have a third of the lines
MAX_EVENTS = 5  # lines of events, if the nodes need the other lines
MIN_LINES_FOR_EVENTS = 14  # with fewer lines, there are no events unless lines are free
MAX_EVENTS_AT_ONCE = 20  # in printed output, which has no page of events
MAX_EVENTS_OF_PAGE = 500
MAX_ABOUT_COLUMNS = 16  # columns for the name of the node that an event is about
MAX_CURVE_COLUMNS = 40
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class ViewChoices:
    sort: str = "name"  # one of `SORTS`
    command: str = ""  # the command of the run, if no option named the run
    is_reversed: bool = False  # the largest first
    page: str = "nodes"  # or matters, events, keys
    first: int = 0  # index of the first line of the list on the screen
    visible: int = 1  # number of lines of the list that were last on the screen

    def show(self, length: int, height: int) -> None:
        """Choose the visible part of a list with `length` lines on a screen with `height` lines."""
        self.visible = max(height, 0)
        self.first = max(min(self.first, length - self.visible), 0)


@dataclass(frozen=True)
class Shown:
    view: RunView
    rows: Sequence[NodeRow]
    events: Sequence[RunEvent] = ()  # oldest first


def printed(shown: Shown, look: ViewChoices, width: int) -> list[Text]:
    """Return lines of at most `width` columns: all nodes, their problems and the newest events."""
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    events = _hanging(_told(_notable(shown)[-MAX_EVENTS_AT_ONCE:], shown), width)
    head = _head(shown, look.command, width)
    return [head, *_table(rows, rows, width), *_matters(rows, width), *events]


def screen_of(shown: Shown, look: ViewChoices, width: int, height: int) -> list[Text]:
    """Return the `height` lines of a screen. No line is wider than `width` columns."""
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    space = max(height - 2, 0)
    if look.page == "nodes":
        body = _nodes(shown, rows, look, width, space)
    else:
        title, lines = _list(shown, rows, look.page, width)
        look.show(len(lines), space - 1)
        body = [*_title(title, width), *lines[look.first : look.first + look.visible]]
    blank = [Text("")] * (space - len(body))
    foot = _foot(len(rows), look, width)
    return [_head(shown, look.command, width), *body, *blank, foot][:height]


# Head and foot


def _head(shown: Shown, command: str, width: int) -> Text:
    view, rows = shown.view, shown.rows
    words = Counter(word_of(row) for row in rows)
    counts = [f"{count} {word}" for word, count in words.most_common() if word != "live"]
    nodes = ", ".join([plural(len(rows), "node"), *counts])
    if view.through:
        parts = [nodes, clock(view.time), f"reported by {view.through}"]
    else:
        has_answered = any(node.answer is not None for node in view.nodes)
        told = "no node answers any more" if has_answered else "no node has answered yet"
        if view.has_ended or (words and words.keys() <= {"finished", "left"}):
            told = "the run has ended"
        parts = [told, clock(view.time), nodes]
    return _line(["dpwa top", *parts, printable(command)], width, "bold")


def _foot(count: int, look: ViewChoices, width: int) -> Text:
    if look.page != "nodes":
        return _line(["Esc: back", "q: quit", "arrows: scroll"], width, "reverse")
    order = "largest first" if look.is_reversed else "smallest first"
    by = f"by {look.sort}" + ("" if look.sort in ("name", "state") else f", {order}")
    some = f"{look.first + 1}-{min(look.first + look.visible, count)} of {count}"
    parts = ["?: keys", "q: quit", some if look.visible < count else "", by]
    return _line(parts, width, "reverse")


def _line(parts: Iterable[str], width: int, style: str = "") -> Text:
    """Join the parts to one line, and truncate the line to `width` columns."""
    line = Text("  ".join(filter(None, parts)), style)
    line.truncate(width, overflow="ellipsis")
    return line


# The nodes, their problems, and the events


def _nodes(
    shown: Shown, rows: Sequence[NodeRow], look: ViewChoices, width: int, height: int
) -> list[Text]:
    matters = _matters(rows, width)
    most = max(height // SHARE_OF_MATTERS, height - 1 - len(rows) - 2)
    most = min(most, max(height - 1 - MIN_ROWS, 0))
    if len(matters) > most:
        matters = [*matters[: most - 1], Text("  press v to see more")] if most else []
    left = height - 1 - len(matters)
    kept = MAX_EVENTS if left >= MIN_LINES_FOR_EVENTS else 0
    for_events = max(left - len(rows), kept) - 1  # and one line for their title
    events = _told(_notable(shown)[: -for_events - 1 : -1], shown) if for_events > 0 else []
    newest = [_line([f"{at} {told}"], width) for at, told, _ in events]
    title = _title("newest events", width) if events else []
    look.show(len(rows), left - len(title) - len(newest))
    table = _table(rows, rows[look.first : look.first + look.visible], width)
    return [*table, *matters, *title, *newest]


def _notable(shown: Shown) -> list[RunEvent]:
    """Return all events except checkpoints, which are frequent. The page of key e shows them."""
    return [event for event in shown.events if event.kind != "checkpoint"]


def _list(
    shown: Shown, rows: Sequence[NodeRow], page: str, width: int
) -> tuple[str, Sequence[Text]]:
    """Return the title and the lines of a page. The page shows problems, events or keys."""
    if page == "matters":
        return "problems", _matters(rows, width) or [Text("  no problems")]
    if page == "events":
        events = _told(shown.events[: -MAX_EVENTS_OF_PAGE - 1 : -1], shown)
        return "events, newest first", _hanging(events, width) or [Text("  none yet")]
    told = [("q", "quit (? shows these keys, and Esc shows the nodes again)")]
    told += [("v", "show all problems in full"), ("e", "show all events")]
    told += [("r", "reverse the order (the arrows, PgUp and PgDn scroll)")]
    told += [(column.key, f"sort by {column.text}") for column in COLUMNS.values() if column.key]
    told += [
        ("X", "node has stopped, or harms other nodes"),
        ("!", "node has a problem"),
        ("?", "node has not answered yet"),
    ]
    keys = _hanging([(f"{key} ", text, "") for key, text in told], width)
    return "keys, and signs of nodes", keys


# Layout by rich


_CONSOLE = Console(file=None, width=80, color_system=None, legacy_windows=False)


def _lines(laid_out: RenderableType, width: int) -> list[Text]:
    options = _CONSOLE.options.update(width=max(width, 1))
    lines = [
        Text.assemble(*((part.text, part.style or "") for part in line))
        for line in _CONSOLE.render_lines(laid_out, options, pad=False)
    ]
    for line in lines:
        line.rstrip()
    return lines


def _title(text: str, width: int) -> list[Text]:
    return _lines(Rule(text, align="left", style="dim"), width)


def _hanging(rows: Sequence[tuple[str, str, str]], width: int) -> list[Text]:
    """Lay out rows (first cell, text, style). A long text is wrapped beside the first cell."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for first, text, style in rows:
        table.add_row(Text(first), Text(text), style=style)
    return _lines(table, width) if rows else []


def _harmless(text: str) -> str:
    """Return untrusted text without control characters. Unlike `printable`, truncate nothing."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _table(rows: Sequence[NodeRow], visible: Sequence[NodeRow], width: int) -> list[Text]:
    """Return a table with the visible rows. Its columns are wide enough for all rows."""
    widths = _widths(rows, width)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(width=1)
    for name, columns in widths.items():
        justify: JustifyMethod = "left" if name in ("name", "state") else "right"
        table.add_column(COLUMNS[name].heading, width=columns, justify=justify, no_wrap=True)
    for row in visible:  # a truncated name is complete below the table, if the node has a problem
        cells = (COLUMNS[name].cell(row, columns) for name, columns in widths.items())
        table.add_row(*map(Text, (sign_of(row), *cells)), style=STYLES[sign_of(row)])
    return _lines(table, width)


def _widths(rows: Sequence[NodeRow], width: int) -> dict[str, int]:
    """Return the width of each column for which the screen has room, by the column's name."""
    found, left = dict[str, int](), width - 1  # one column is for the sign
    unknown = missing(rows)
    needed = {
        name: max([column.width, *(cell_len(column.cell(row, column.width)) for row in rows)])
        for name, column in COLUMNS.items()
        if ("loss" if name == "curve" else name) not in unknown
    }
    longest, needed["name"] = needed["name"], min(needed["name"], max(width // 3, 4))
    for name, columns in needed.items():
        if 1 + columns > left:
            break
        found[name] = columns
        left -= 1 + columns
    for name, most in (("name", longest), ("curve", MAX_CURVE_COLUMNS)):
        if name in found:
            more = min(left, most - found[name])
            found[name] += more
            left -= more
    return found


# Texts


def _matters(rows: Sequence[NodeRow], width: int) -> list[Text]:
    found = [
        (SIGNS[verdict.severity], f"{row.name} {verdict.text}")
        for row in rows
        for verdict in row.verdicts
    ]
    found.sort(key=lambda pair: "X!".index(pair[0]))
    unknown = [r for r in rows if r.state == "unknown" and r.problem]
    found += [("?", f"{row.name} has not answered yet: {row.problem}") for row in unknown]
    finishing: dict[tuple[str, ...], list[str]] = {}  # nodes, by the peers that they wait for
    for row in rows:
        if row.state == "finishing":
            finishing.setdefault(row.waits_for, []).append(row.name)
    for waits_for, names in finishing.items():
        whom = f" (waiting for {listing(waits_for, MAX_NAMES)})" if waits_for else ""
        found.append((" ", f"finishing: {listing(names, MAX_NAMES)}{whom}"))
    found += [
        (" ", f"{r.name}: clock and loss as reported by {r.through}") for r in rows if r.through
    ]
    found += [(" ", f"in sync: {', '.join(names)}") for names in groups(rows)]
    reasons: dict[str, list[str]] = {}
    for name, why in missing(rows).items():
        if why and name in COLUMNS:
            reasons.setdefault(why, []).append(COLUMNS[name].heading)
    found += [(" ", f"no {', '.join(names)}: {why}") for why, names in reasons.items()]
    return _hanging([(sign, _harmless(text), STYLES[sign]) for sign, text in found], width)


def _told(events: Iterable[RunEvent], shown: Shown) -> list[tuple[str, str, str]]:
    """Return a row (time, text, style) for each event."""
    wide = min(max([1, *(len(other.about) for other in shown.events)]), MAX_ABOUT_COLUMNS)
    rows = []
    for event in events:
        by = f", noticed by {event.node}" if event.node not in ("", event.about) else ""
        text = f": {event.text}" if event.text else ""
        told = f"{event.about:<{wide}} {event.kind.replace('_', ' ')}{by}{text}"
        rows.append((clock(event.time), _harmless(told), ""))
    return rows


def word_of(row: NodeRow) -> str:
    """Return the name of a node's worst problem, or its state if it has no problem."""
    worst = sorted(row.verdicts, key=lambda verdict: verdict.severity != "bad")
    is_in_sync = row.state == "live" and len(row.in_sync) > 1
    return worst[0].kind if worst else "in sync" if is_in_sync else row.state


def sign_of(row: NodeRow) -> str:
    """Return the sign before a node: `X`, `!`, `?` (no answer yet) or a blank."""
    severities = {verdict.severity for verdict in row.verdicts}
    if "bad" in severities:
        return SIGNS["bad"]
    if severities:
        return SIGNS["odd"]
    return "?" if row.state == "unknown" else " "


# The columns. On a narrow screen, the last columns are left out first.


@dataclass(frozen=True)
class Column:
    name: str  # the name for `--sort`
    key: str  # the key that sorts by this column, or empty
    heading: str
    width: int  # minimum; a column is as wide as its widest cell
    text: str  # the explanation on the page of keys
    value: Callable[[NodeRow], Any]  # the value to sort by, or `None` if it is unknown
    cell: Callable[[NodeRow, int], str]  # the text of a cell with this width


def _figure(
    name: str,
    key: str,
    heading: str,
    width: int,
    text: str,
    attribute: str,
    told: Callable[[float], str],
) -> Column:
    value = attrgetter(attribute)

    def cell(row: NodeRow, _: int) -> str:
        found = value(row)
        return "-" if found is None else "inf" if math.isinf(found) else told(found)

    return Column(name, key, heading, width, text, value, cell)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else number(value)


def _order(row: NodeRow) -> list[Any]:
    return natural_order(row.name)


def _sign_order(row: NodeRow) -> int:
    return "X!? ".index(sign_of(row))


COLUMNS = {
    column.name: column
    for column in (
        Column("name", "n", "name", 4, "name", _order, lambda row, _: printable(row.name)),
        Column("state", "m", "state", 5, "problem", _sign_order, lambda row, _: word_of(row)),
        _figure("loss", "l", "loss", 7, "training loss", "loss", number),
        _figure("steps", "s", "steps/s", 7, "steps per second", "rates.steps_per_s", _short),
        _figure("wait", "w", "wait", 5, "share of the time waiting for peers", "rates.wait", share),
        Column("curve", "", "curve", 6, "", _order, lambda row, w: sparkline(row.losses, w)),
        _figure("clock", "c", "clock", 6, "training clock", "clock", number),
        _figure("taken", "z", "steps", 6, "steps of this process so far", "steps", number),
        _figure("rounds", "u", "rounds/s", 8, "rounds per second", "rates.rounds_per_s", _short),
        _figure("mapped", "a", "map/s", 7, "bytes mapped per second", "rates.mapped_per_s", size),
        _figure("in", "i", "in/s", 7, "bytes received per second", "rates.received_per_s", size),
        _figure("out", "o", "out/s", 7, "bytes sent per second", "rates.sent_per_s", size),
        _figure("staleness", "t", "stale", 5, "staleness of merges", "rates.staleness", _short),
        _figure("distance", "d", "distance", 8, "consensus distance", "consensus_distance", _short),
        _figure("score", "p", "score", 5, "score from its peers", "score", _short),
    )
}  # fmt: skip
SORTS = {column.name: column.key for column in COLUMNS.values() if column.key}


def sorted_rows(rows: Sequence[NodeRow], by: str, *, is_reversed: bool = False) -> list[NodeRow]:
    """Return the rows, sorted by the values of a column. Rows without a known value are last.

    If `by` is `state`, nodes with a problem are first.
    """
    value, by_name = COLUMNS[by].value, sorted(rows, key=_order)
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    return sorted(known, key=value, reverse=is_reversed) + unknown


def sparkline(losses: Sequence[float], width: int) -> str:
    """Return losses as block characters, oldest first. Without room, only every n-th is shown."""
    every = max(-(-len(losses) // width), 1)
    newest = losses[::-every][::-1]
    finite = [loss / 2 for loss in newest if math.isfinite(loss)]  # half, so no overflow
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def drawn(loss: float) -> str:
        if math.isnan(loss):
            return " "
        if math.isinf(loss):
            return "^"
        return BLOCKS[round((loss / 2 - low) / (high - low or 1.0) * (len(BLOCKS) - 1))]

    return "".join(map(drawn, newest)).rjust(width)
