"""Lays out what `dpwa top` shows: pure, from what is known of a run to lines of a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, JustifyMethod, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dpwa.config.problems import listing
from dpwa.observe.events import RunEvent
from dpwa.observe.rows import NodeRow, groups, missing
from dpwa.observe.run_reading import natural_order
from dpwa.observe.run_view import RunView
from dpwa.observe.verdicts import MAX_NAMES
from dpwa.report.wording import clock, number, plural, share, size
from dpwa.wire.messages import printable

STYLES = {"X": "red", "!": "yellow", "?": "dim", " ": ""}
MIN_CURVE_COLUMNS = 6
MIN_ROWS = 3
SHARE_OF_MATTERS = 3  # of the lines, one in so many
MAX_EVENTS = 5  # lines, if the nodes need the room, and there are this many:
MIN_LINES_FOR_EVENTS = 14
MAX_EVENTS_AT_ONCE = 20  # where there is no page for all of them
MAX_EVENTS_OF_PAGE = 500
MAX_ABOUT_COLUMNS = 16  # columns for the node that an event is about, before what has happened
Value = float | None
MIN_NAME_COLUMNS = 4
MAX_CURVE_COLUMNS = 40
BLOCKS = "▁▂▃▄▅▆▇█"
SIGNS = {"bad": "X", "odd": "!"}


@dataclass
class ViewChoices:
    sort: str = "name"  # one of `SORTS`
    command: str = ""  # of the run, if that was found by itself
    is_reversed: bool = False  # the largest first
    page: str = "nodes"  # or matters, events, keys
    first: int = 0  # line of the list that is shown
    visible: int = 1  # how many lines of it were shown last

    def clamp(self, length: int) -> None:
        self.first = max(min(self.first, length - self.visible), 0)


@dataclass(frozen=True)
class Screen:
    width: int
    height: int | None  # `None`: as many lines as there are


@dataclass(frozen=True)
class Shown:
    view: RunView
    rows: Sequence[NodeRow]
    events: Sequence[RunEvent] = ()  # oldest first


def lines_of(shown: Shown, look: ViewChoices, screen: Screen) -> list[Text]:
    """Return the lines of a screen; none is wider than it is, and there are as many as it has."""
    page = {"nodes": _nodes, "matters": _matters, "events": _all_events, "keys": _keys}[look.page]
    head = _head(shown, look.command, screen)
    if screen.height is None:
        return [head, *page(shown, look, screen, None)]
    body = page(shown, look, screen, max(screen.height - 2, 0))
    blank = [Text("")] * (screen.height - 2 - len(body))
    return [head, *body, *blank, _foot(len(shown.rows), look, screen)][: screen.height]


# Head and foot


def _head(shown: Shown, command: str, screen: Screen) -> Text:
    view, rows = shown.view, shown.rows
    words = Counter(word_of(row) for row in rows)
    counts = [f"{count} {word}" for word, count in words.most_common() if word != "live"]
    nodes = plural(len(rows), "node")
    if view.through:
        parts = [", ".join([nodes, *counts]), clock(view.time), f"read through {view.through}"]
    else:
        has_answered = any(node.answer is not None for node in view.nodes)
        told = "nobody answers any more" if has_answered else "nobody answers yet"
        if view.has_ended or (words and words.keys() <= {"finished", "left"}):
            told = "the run has ended"
        parts = [told, clock(view.time), ", ".join([nodes, *counts])]
    return Text(_joined(["dpwa top", *parts, printable(command)], screen.width), style="bold")


def _joined(parts: Sequence[str], width: int) -> str:
    joined = parts[0]
    for part in parts[1:]:
        if cell_len(f"{joined}  {part}") <= width:
            joined = f"{joined}  {part}"
    return set_cell_size(joined, width).rstrip()


def _foot(count: int, look: ViewChoices, screen: Screen) -> Text:
    if look.page != "nodes":
        parts = ["Esc: back", "q: quit", "arrows: scroll"]
    else:
        order = "largest first" if look.is_reversed else "smallest first"
        by = f"by {look.sort}" + ("" if look.sort in (NAME, STATE) else f", {order}")
        some = f"{look.first + 1}-{min(look.first + look.visible, count)} of {count}"
        parts = ["?: keys", "q: quit", *([some] if look.visible < count else []), by]
    return Text(_joined(parts, screen.width), style="reverse")


# The nodes, their problems, and the events


def _nodes(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    matters = _matter_lines(rows, screen)
    if height is None:
        look.first, look.visible = 0, len(rows)
        newest = _notable(shown)[-MAX_EVENTS_AT_ONCE:]
        return [*_table(rows, rows, screen), *matters, *_event_lines(newest, shown, screen)]
    most = max(height // SHARE_OF_MATTERS, height - 1 - len(rows) - 2)
    matters = _at_most(matters, min(most, max(height - 1 - MIN_ROWS, 0)))
    left = height - 1 - len(matters)
    kept = MAX_EVENTS if left >= MIN_LINES_FOR_EVENTS else 0
    for_events = max(left - len(rows), kept) - 1  # below a line of its own
    events = _notable(shown)[-for_events:] if for_events > 0 else []
    look.visible = max(left - (1 + len(events) if events else 0), 0)
    look.clamp(len(rows))
    table = _table(rows, rows[look.first : look.first + look.visible], screen)
    title = _title("newest events", screen) if events else []
    return [*table, *matters, *title, *_event_lines(events[::-1], shown, screen, is_cut=True)]


def _notable(shown: Shown) -> list[RunEvent]:
    """Return the events without checkpoints, of which there are many; key e shows all."""
    return [event for event in shown.events if event.kind != "checkpoint"]


def _matters(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    lines = _matter_lines(rows, screen) or [Text("  no problems")]
    return _scrolled(_title("problems", screen), lines, look, height)


def _all_events(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    lines = _event_lines(shown.events[: -MAX_EVENTS_OF_PAGE - 1 : -1], shown, screen)
    title = _title("events, newest first", screen)
    return _scrolled(title, lines or [Text("  none yet")], look, height)


def _keys(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:  # noqa: ARG001
    told = [("q", "quit; ? and Esc: these keys, and back to the nodes")]
    told += [("v", "all problems, in full"), ("e", "all events")]
    told += [("r", "reverse the order; arrows, PgUp, PgDn: scroll")]
    told += [("n", "sort by name"), ("m", "sort by problem")]
    told += [(column.key, f"sort by {column.text}") for column in COLUMNS.values()]
    told += [("X", "takes no part any more, or harms others"), ("!", "odd"), ("?", "no answer yet")]
    lines = _hanging([(f"{key} ", text, "") for key, text in told], screen)
    return _scrolled(_title("keys, and signs of nodes", screen), lines, look, height)


def _scrolled(
    title: list[Text], lines: list[Text], look: ViewChoices, height: int | None
) -> list[Text]:
    look.visible = len(lines) if height is None else max(height - 1, 0)
    look.clamp(len(lines))
    return [*title, *lines[look.first : look.first + look.visible]]


def _at_most(lines: list[Text], most: int) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text("  more of it: key v")] if most > 0 else []


# What rich lays out


_CONSOLE = Console(file=None, width=80, color_system=None, legacy_windows=False)


def _lines(laid_out: RenderableType, screen: Screen) -> list[Text]:
    options = _CONSOLE.options.update(width=max(screen.width, 1))
    lines = [
        Text.assemble(*((part.text, part.style or "") for part in line))
        for line in _CONSOLE.render_lines(laid_out, options, pad=False)
    ]
    for line in lines:
        line.rstrip()
    return lines


def _title(text: str, screen: Screen) -> list[Text]:
    return _lines(Rule(text, align="left", style="dim"), screen)


def _hanging(
    rows: Sequence[tuple[str, str, str]], screen: Screen, *, is_cut: bool = False
) -> list[Text]:
    """Return what stands first and a text beside it, wrapped or cut, for each row in a style."""
    first_width = max((len(first) for first, _, _ in rows), default=0)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=first_width)
    table.add_column(
        width=max(screen.width - first_width - 1, 1),
        no_wrap=is_cut,
        overflow="ellipsis" if is_cut else "fold",
    )
    for first, text, style in rows:
        table.add_row(Text(first), Text(_harmless(text)), style=style)
    return _lines(table, screen)


def _harmless(text: str) -> str:
    """Return foreign text without characters that steer a terminal; not cut, as `printable` is."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _table(rows: Sequence[NodeRow], visible: Sequence[NodeRow], screen: Screen) -> list[Text]:
    """Return the headings and the visible ones of the rows, in columns as wide as all need."""
    widths = _widths(rows, screen.width)
    names = [name for name in ORDER if name in widths]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(width=1)
    for name in names:
        heading = COLUMNS[name].heading if name in COLUMNS else name
        justify: JustifyMethod = "left" if name in (NAME, STATE) else "right"
        table.add_column(heading, width=widths[name], justify=justify, no_wrap=True)
    for row in visible:  # a name that has no room is whole below the table, if it matters
        cells = (cell_of(row, name, widths[name]) for name in names)
        table.add_row(*map(Text, (sign_of(row), *cells)), style=STYLES[sign_of(row)])
    return _lines(table, screen)


def _widths(rows: Sequence[NodeRow], width: int) -> dict[str, int]:
    needed = {
        name: max([least, *(cell_len(cell_of(row, name)) for row in rows)])
        for name, least in MIN_WIDTHS.items()
    }
    longest, needed[NAME] = needed[NAME], min(needed[NAME], max(width // 3, MIN_NAME_COLUMNS))
    found, left = dict[str, int](), width - 1  # for the sign
    unknown = missing(rows)
    unknown |= {CURVE: ""} if "loss" in unknown else {}
    for name in IMPORTANCE:
        if name in unknown:
            continue
        if 1 + needed[name] > left:
            break
        found[name] = needed[name]
        left -= 1 + needed[name]
    if NAME in found:
        more = min(left, longest - found[NAME])
        found[NAME] += more
        left -= more
    if CURVE in found:
        found[CURVE] += min(left, MAX_CURVE_COLUMNS - MIN_CURVE_COLUMNS)
    return found


# Texts


def _matter_lines(rows: Sequence[NodeRow], screen: Screen) -> list[Text]:
    found = [
        (SIGNS[verdict.severity], f"{row.name} {verdict.text}")
        for row in rows
        for verdict in row.verdicts
    ]
    found.sort(key=lambda pair: "X!".index(pair[0]))
    unknown = [r for r in rows if r.state == "unknown" and r.problem]
    found += [("?", f"{row.name} has not answered yet: {row.problem}") for row in unknown]
    finishing: dict[tuple[str, ...], list[str]] = {}  # by whom they wait for
    for row in rows:
        if row.state == "finishing":
            finishing.setdefault(row.waits_for, []).append(row.name)
    for waits_for, names in finishing.items():
        whom = f", waits for {listing(waits_for, MAX_NAMES)}" if waits_for else ""
        found.append((" ", f"finishing{whom}: {listing(names, MAX_NAMES)}"))
    found += [
        (" ", f"{r.name}: clock and loss as {r.through} has heard of them")
        for r in rows
        if r.through
    ]
    found += [(" ", f"in sync: {', '.join(names)}") for names in groups(rows)]
    reasons: dict[str, list[str]] = {}
    for name, why in missing(rows).items():
        if why and name in COLUMNS:
            reasons.setdefault(why, []).append(COLUMNS[name].heading)
    found += [(" ", f"no {', '.join(names)}: {why}") for why, names in reasons.items()]
    return _hanging([(sign, text, STYLES[sign]) for sign, text in found], screen)


def _event_lines(
    events: Sequence[RunEvent], shown: Shown, screen: Screen, *, is_cut: bool = False
) -> list[Text]:
    """Return events wrapped beside their moments; those that are cut take one line each."""
    wide = min(max([1, *(len(other.about) for other in shown.events)]), MAX_ABOUT_COLUMNS)
    rows = []
    for event in events:
        by = f", noticed by {event.node}" if event.node not in ("", event.about) else ""
        text = f": {event.text}" if event.text else ""
        told = f"{event.about:<{wide}} {event.kind.replace('_', ' ')}{by}{text}"
        rows.append((clock(event.time), told, ""))
    return _hanging(rows, screen, is_cut=is_cut)


# The columns: what stands in each, and how nodes are sorted by it


@dataclass(frozen=True)
class Column:
    name: str  # by which `--sort` knows it
    key: str  # that sorts by it
    heading: str
    width: int  # at least; it is as wide as its widest cell
    value: Callable[[NodeRow], Value]
    cell: Callable[[float], str]
    text: str  # what it is, for the page of keys


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else number(value)


def _waiting(row: NodeRow) -> Value:
    return None if row.rates.shares is None else row.rates.shares["wait"]


_COLUMNS = (
    Column("loss", "l", "loss", 7, lambda r: r.loss, number, "training loss"),
    Column("clock", "c", "clock", 6, lambda r: r.clock, number, "training clock"),
    Column("taken", "z", "steps", 6, lambda r: r.steps, number, "steps of this process so far"),
    Column("steps", "s", "steps/s", 7, lambda r: r.rates.steps_per_s, _short, "steps a second"),
    Column("rounds", "u", "rounds/s", 8, lambda r: r.rates.rounds_per_s, _short, "rounds a second"),
    Column("wait", "w", "wait", 5, _waiting, share, "share of the time waiting for peers"),
    Column("in", "i", "in/s", 7, lambda r: r.rates.received_per_s, size, "bytes received a second"),
    Column("out", "o", "out/s", 7, lambda r: r.rates.sent_per_s, size, "bytes sent a second"),
    Column(
        "mapped",
        "a",
        "map/s",
        7,
        lambda r: r.rates.mapped_per_s,
        size,
        "bytes read from memory of peers a second",
    ),
    Column(
        "staleness",
        "t",
        "stale",
        5,
        lambda r: r.rates.staleness,
        _short,
        "staleness of what is merged",
    ),
    Column(
        "distance", "d", "distance", 8, lambda r: r.consensus_distance, _short, "consensus distance"
    ),
    Column("score", "p", "score", 5, lambda r: r.score, _short, "score that its peers give it"),
)
COLUMNS = {column.name: column for column in _COLUMNS}
NAME, STATE, CURVE = "name", "state", "curve"
SORTS = {NAME: "n", STATE: "m", **{name: column.key for name, column in COLUMNS.items()}}
# As they stand, and from what is left out last to what is left out first.
ORDER = [NAME, STATE, "loss", CURVE, "clock", "taken", "steps", "rounds", "wait", "in", "out"]
ORDER += ["mapped", "staleness", "distance", "score"]
MIN_WIDTHS = {NAME: MIN_NAME_COLUMNS, STATE: 5, CURVE: MIN_CURVE_COLUMNS}
MIN_WIDTHS |= {name: column.width for name, column in COLUMNS.items()}
IMPORTANCE = [NAME, STATE, "loss", "steps", "wait", CURVE, "clock", "taken", "rounds", "mapped"]
IMPORTANCE += ["in", "out", "staleness", "distance", "score"]


def word_of(row: NodeRow) -> str:
    """Return the problem of a node in short, or its state if it has none."""
    worst = sorted(row.verdicts, key=lambda verdict: verdict.severity != "bad")
    is_in_sync = row.state == "live" and len(row.in_sync) > 1
    return worst[0].kind if worst else "in sync" if is_in_sync else row.state


def sign_of(row: NodeRow) -> str:
    """Return the sign before a node: `X`, `!`, `?` if it has not answered, or a blank."""
    severities = {verdict.severity for verdict in row.verdicts}
    if "bad" in severities:
        return SIGNS["bad"]
    if severities:
        return SIGNS["odd"]
    return "?" if row.state == "unknown" else " "


def cell_of(row: NodeRow, name: str, width: int = MIN_CURVE_COLUMNS) -> str:
    if name in (NAME, STATE):
        return printable(row.name) if name == NAME else word_of(row)
    if name == CURVE:
        return sparkline(row.losses, width)
    value = _known(row, name)
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else COLUMNS[name].cell(value)


def _known(row: NodeRow, name: str) -> Value:
    value = COLUMNS[name].value(row)
    return None if value is None or math.isnan(value) else value


def sorted_rows(rows: Sequence[NodeRow], by: str, *, is_reversed: bool = False) -> list[NodeRow]:
    """Return the rows, the smallest first; those of which the value is not known are last.

    By state, nodes with a problem are first.
    """
    by_name = sorted(rows, key=lambda row: natural_order(row.name))
    if by == NAME:
        return by_name[::-1] if is_reversed else by_name
    if by == STATE:
        return sorted(by_name, key=lambda row: "X!? ".index(sign_of(row)), reverse=is_reversed)
    known = [row for row in by_name if _known(row, by) is not None]
    known.sort(key=lambda row: _known(row, by) or 0.0, reverse=is_reversed)
    return known + [row for row in by_name if _known(row, by) is None]


def sparkline(losses: Sequence[float], width: int) -> str:
    """Draw losses, oldest first; if there are too many, the newest and every second or third."""
    every = max(-(-len(losses) // width), 1)
    newest = losses[::-every][::-1]
    finite = [loss / 2 for loss in newest if math.isfinite(loss)]  # no difference is infinite
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def drawn(loss: float) -> str:
        if math.isnan(loss):
            return " "
        if math.isinf(loss):
            return "^"
        return BLOCKS[round((loss / 2 - low) / (high - low or 1.0) * (len(BLOCKS) - 1))]

    return "".join(map(drawn, newest)).rjust(width)
