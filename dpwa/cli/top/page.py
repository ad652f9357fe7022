"""Lays out what `dpwa top` shows: pure, from what is known of a run to lines of a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dpwa.cli.top import columns
from dpwa.cli.top.columns import COLUMNS, CURVE, IMPORTANCE, NAME, ORDER, STATE
from dpwa.observe.events import RunEvent
from dpwa.observe.rows import NodeRow
from dpwa.observe.run_view import RunView
from dpwa.wire.messages import printable

STYLES = {"X": "red", "!": "yellow", "?": "dim", " ": ""}
LEAST_CURVE = 6
LEAST_ROWS = 3
SHARE_OF_MATTERS = 3  # of the lines, one in so many
MOST_EVENTS = 5  # lines, if the nodes need the room, and there are this many:
LEAST_FOR_EVENTS = 14
MOST_EVENTS_AT_ONCE = 20  # where there is no page for all of them
MOST_EVENTS_OF_PAGE = 500
MOST_ABOUT = 16  # columns for the node that an event is about, before what has happened
PAGES = ("nodes", "matters", "events", "keys")


@dataclass
class ViewChoices:
    """What the one who looks has chosen.

    Attributes:
        sort: by what nodes are sorted; one of `columns.SORTS`.
        is_reversed: the largest first.
        page: one of `PAGES`.
        first: first line of the list that is shown.
        room: how many lines of it were shown last.
    """

    sort: str = NAME
    is_reversed: bool = False
    page: str = "nodes"
    first: int = 0
    room: int = 1

    def clamp(self, length: int) -> None:
        """Have the first line within a list of this length."""
        self.first = max(min(self.first, length - self.room), 0)


@dataclass(frozen=True)
class Screen:
    """Where it is shown.

    Attributes:
        width: columns.
        height: lines; `None`: as many as there are.
        is_unicode: whether block characters can be shown.
    """

    width: int
    height: int | None
    is_unicode: bool = True


@dataclass(frozen=True)
class Shown:
    """What is known.

    Attributes:
        view: of the run.
        rows: of its nodes.
        events: oldest first.
    """

    view: RunView
    rows: Sequence[NodeRow]
    events: Sequence[RunEvent] = field(default_factory=tuple)


def lines_of(shown: Shown, look: ViewChoices, screen: Screen) -> list[Text]:
    """Return the lines of a screen; none is wider than it is, and there are as many as it has."""
    page = {"nodes": _nodes, "matters": _matters, "events": _all_events, "keys": _keys}[look.page]
    head = _head(shown, screen)
    if screen.height is None:
        return [head, *page(shown, look, screen, None)]
    body = page(shown, look, screen, max(screen.height - 2, 0))
    blank = [Text("")] * (screen.height - 2 - len(body))
    return [head, *body, *blank, _foot(len(shown.rows), look, screen)][: screen.height]


# Head and foot


def _head(shown: Shown, screen: Screen) -> Text:
    view, rows = shown.view, shown.rows
    clock = time.strftime("%H:%M:%S", time.localtime(view.time))
    words = Counter(columns.word_of(row) for row in rows)
    counts = [f"{count} {word}" for word, count in words.most_common() if word != "live"]
    nodes = f"{len(rows)} node" + ("" if len(rows) == 1 else "s")
    if view.through:
        parts = [", ".join([nodes, *counts]), clock, f"read through {view.through}"]
    else:
        has_answered = any(node.answer is not None for node in view.nodes)
        parts = ["nobody answers any more" if has_answered else "nobody answers yet", clock, nodes]
    return Text(_joined(["dpwa top", *parts], screen.width), style="bold")


def _joined(parts: Sequence[str], width: int) -> str:
    """Join as many parts as fit; the first is cut where not even that does."""
    joined = parts[0]
    for part in parts[1:]:
        if cell_len(f"{joined}  {part}") <= width:
            joined = f"{joined}  {part}"
    return set_cell_size(joined, width).rstrip()


def _foot(count: int, look: ViewChoices, screen: Screen) -> Text:
    """Return the last line: what is shown, and which keys there are."""
    if look.page != "nodes":
        parts = ["Esc: back", "q: quit", "arrows: scroll"]
    else:
        order = "largest first" if look.is_reversed else "smallest first"
        by = f"by {look.sort}" + ("" if look.sort in (NAME, STATE) else f", {order}")
        some = f"{look.first + 1}-{min(look.first + look.room, count)} of {count}"
        parts = ["?: keys", "q: quit", *([some] if look.room < count else []), by]
    return Text(_joined(parts, screen.width), style="reverse")


# The nodes, what is the matter with them, and what has happened


def _nodes(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = columns.sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    head, *table = _table(rows, screen)
    matters = list(_matter_lines(rows, screen))
    if height is None:
        look.first, look.room = 0, len(table)
        newest = (_event_text(event, shown) for event in shown.events[-MOST_EVENTS_AT_ONCE:])
        wrapped = chain.from_iterable(_wrapped(text, screen, indent=2) for text in newest)
        return [head, *table, *matters, *wrapped]
    most = max(height // SHARE_OF_MATTERS, height - 1 - len(table) - 2)
    matters = _at_most(matters, min(most, max(height - 1 - LEAST_ROWS, 0)))
    left = height - 1 - len(matters)
    kept = MOST_EVENTS if left >= LEAST_FOR_EVENTS else 0
    for_events = max(left - len(table), kept) - 1  # below a line of its own
    events = shown.events[-for_events:] if for_events > 0 else ()
    look.room = max(left - (1 + len(events) if events else 0), 0)
    look.clamp(len(table))
    seen = table[look.first : look.first + look.room]
    told = [_event(event, shown, screen) for event in reversed(events)]
    title = [_rule("newest events", screen)] if told else []
    return [head, *seen, *matters, *title, *told]


def _matters(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = columns.sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    lines = list(_matter_lines(rows, screen)) or [Text("  nothing is the matter")]
    return _scrolled(_rule("what is the matter", screen), lines, look, height)


def _all_events(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    lines = []
    for event in reversed(shown.events[-MOST_EVENTS_OF_PAGE:]):
        lines += _wrapped(_event_text(event, shown), screen, indent=2)
    title = _rule("events, newest first", screen)
    return _scrolled(title, lines or [Text("  none yet")], look, height)


def _keys(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:  # noqa: ARG001
    told = [("q", "quit"), ("?, Esc", "these keys, and back to the nodes")]
    told += [("v", "all that is the matter, in full"), ("e", "all events")]
    told += [("arrows, PgUp, PgDn", "scroll"), ("r", "reverse the order")]
    told += [("n", "sort by name"), ("m", "sort by what is the matter")]
    told += [(column.key, f"sort by {column.text}") for column in COLUMNS.values()]
    signs = [("X", "takes no part any more, or harms others"), ("!", "odd"), ("?", "no answer yet")]
    lines = [line for key, text in told for line in _wrapped(f"{key}  {text}", screen, indent=3)]
    lines += [_rule("signs", screen)]
    lines += [line for key, text in signs for line in _wrapped(f"{key}  {text}", screen, indent=3)]
    return _scrolled(_rule("keys", screen), lines, look, height)


def _scrolled(title: Text, lines: list[Text], look: ViewChoices, height: int | None) -> list[Text]:
    look.room = len(lines) if height is None else max(height - 1, 0)
    look.clamp(len(lines))
    return [title, *lines[look.first : look.first + look.room]]


def _at_most(lines: list[Text], most: int) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text("  more of it: key v")] if most > 0 else []


def _rule(title: str, screen: Screen) -> Text:
    line = "─" if screen.is_unicode else "-"
    width = min(screen.width, 200)
    return Text(set_cell_size(f"{line}{line} {title} {line * width}", width), style="dim")


# The table


def _table(rows: Sequence[NodeRow], screen: Screen) -> Iterator[Text]:
    """Yield the headings and a line for each node, of as many columns as there is room for."""
    widths = _widths(rows, screen.width)
    names = [name for name in ORDER if name in widths]
    titles = [_fitted(_heading(n), widths[n], left=n in (NAME, STATE)) for n in names]
    yield Text(_cut("  " + " ".join(titles), screen), style="bold")
    for row in rows:
        sign = columns.sign_of(row)
        cells = [_cell(row, name, widths[name], screen) for name in names]
        yield Text(_cut(f"{sign} {' '.join(cells)}", screen), style=STYLES[sign])


def _heading(name: str) -> str:
    return COLUMNS[name].heading if name in COLUMNS else name


def _cell(row: NodeRow, name: str, width: int, screen: Screen) -> str:
    if name == CURVE:
        return columns.sparkline(row.losses, width, is_unicode=screen.is_unicode)
    text = {NAME: row.name, STATE: columns.word_of(row)}.get(name)
    if text is None:
        return _fitted(columns.cell_of(row, name), width, left=False)
    shown = printable(text)
    if cell_len(shown) > width:  # a name that has no room: it is whole below, if it matters
        mark = "…" if screen.is_unicode else "~"
        shown = set_cell_size(shown, max(width - 1, 0)) + mark
    return _fitted(shown, width, left=True)


def _widths(rows: Sequence[NodeRow], width: int) -> dict[str, int]:
    """Return how wide each column is; those for which there is no room are left out."""
    longest = max([columns.LEAST_NAME, *(cell_len(printable(row.name)) for row in rows)])
    state = max([len("state"), *(len(columns.word_of(row)) for row in rows)])
    needed = {NAME: min(longest, max(width // 3, columns.LEAST_NAME)), STATE: state}
    for name, column in COLUMNS.items():
        cells = (len(columns.cell_of(row, name)) for row in rows)
        needed[name] = max([column.width, *cells])
    needed[CURVE] = LEAST_CURVE
    found, left = dict[str, int](), width - 1  # for the sign
    for name in IMPORTANCE:
        if 1 + needed[name] > left:
            break
        found[name] = needed[name]
        left -= 1 + needed[name]
    if left > 0 and NAME in found:
        more = min(left, longest - found[NAME])
        found[NAME] += more
        left -= more
    if CURVE in found:
        found[CURVE] += min(left, columns.MOST_CURVE - LEAST_CURVE)
    return found


def _fitted(text: str, width: int, *, left: bool) -> str:
    fitting = set_cell_size(text, width) if cell_len(text) > width else text
    blanks = " " * (width - cell_len(fitting))
    return fitting + blanks if left else blanks + fitting


def _cut(line: str, screen: Screen) -> str:
    return set_cell_size(line, min(cell_len(line), screen.width)).rstrip()


# Texts


def _matter_lines(rows: Sequence[NodeRow], screen: Screen) -> Iterator[Text]:
    """Yield the reasons in words, the bad ones first."""
    found = [
        (columns.SIGNS[verdict.severity], f"{row.name} {verdict.text}")
        for row in rows
        for verdict in row.verdicts
    ]
    found.sort(key=lambda pair: "X!".index(pair[0]))
    unknown = [r for r in rows if r.state == "unknown" and r.problem]
    found += [("?", f"{row.name} has not answered yet: {row.problem}") for row in unknown]
    found += [
        (" ", f"{r.name}: clock and loss as {r.through} has heard of them")
        for r in rows
        if r.through
    ]
    for sign, text in found:
        yield from _wrapped(f"{sign} {text}", screen, indent=2, style=STYLES[sign])


def _event_text(event: RunEvent, shown: Shown) -> str:
    moment = time.strftime("%H:%M:%S", time.localtime(event.time))
    wide = min(max([0, *(len(other.about) for other in shown.events)]), MOST_ABOUT)
    by = f", noticed by {event.node}" if event.node not in ("", event.about) else ""
    text = f": {event.text}" if event.text else ""
    return f"{moment} {event.about:<{max(wide, 1)}} {event.kind}{by}{text}"


def _event(event: RunEvent, shown: Shown, screen: Screen) -> Text:
    """Return an event on one line; of a longer one, the words that fit."""
    lines = _wrapped(_event_text(event, shown), screen, indent=0)
    if len(lines) == 1:
        return lines[0]
    mark = " …" if screen.is_unicode else " .."
    words = lines[0].plain
    while cell_len(words + mark) > screen.width and " " in words:
        words = words.rpartition(" ")[0].rstrip()
    return Text(set_cell_size(words + mark, min(screen.width, cell_len(words + mark))))


_CONSOLE = Console(file=None, width=80, color_system=None, legacy_windows=False)


def _wrapped(text: str, screen: Screen, *, indent: int, style: str = "") -> list[Text]:
    """Return a text in lines that fit, wrapped between words; one more indented than the first."""
    whole = printable_line(text, screen)
    if cell_len(whole) <= screen.width:
        return [Text(whole, style=style)]
    first = Text(whole).wrap(_CONSOLE, screen.width, overflow="fold")[0].plain
    rest = whole[len(first) :].lstrip()
    room = max(screen.width - indent, 1)
    more = Text(rest).wrap(_CONSOLE, room, overflow="fold")
    lines = [first.rstrip(), *(" " * indent + line.plain.rstrip() for line in more)]
    return [Text(line, style=style) for line in lines]


def printable_line(text: str, screen: Screen) -> str:
    """Return foreign text as one line that every terminal of this kind can show."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if screen.is_unicode else shown.encode("ascii", "replace").decode()
