"""Lays out what `dpwa top` shows: pure, from what is known of a run to lines of a terminal."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dpwa.cli.screen import number
from dpwa.observe.events import RunEvent
from dpwa.observe.rows import NodeRow, groups, missing
from dpwa.observe.run_reading import natural_order
from dpwa.observe.run_view import RunView
from dpwa.observe.verdicts import listed
from dpwa.report.wording import size
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
Value = float | None
LEAST_NAME = 4
MOST_CURVE = 40
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"
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
    is_unicode: bool = True  # whether block characters can be shown


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
    clock = time.strftime("%H:%M:%S", time.localtime(view.time))
    words = Counter(word_of(row) for row in rows)
    counts = [f"{count} {word}" for word, count in words.most_common() if word != "live"]
    nodes = f"{len(rows)} node" + ("" if len(rows) == 1 else "s")
    if view.through:
        parts = [", ".join([nodes, *counts]), clock, f"read through {view.through}"]
    else:
        has_answered = any(node.answer is not None for node in view.nodes)
        told = "nobody answers any more" if has_answered else "nobody answers yet"
        if view.has_ended or (words and words.keys() <= {"finished", "left"}):
            told = "the run has ended"
        parts = [told, clock, ", ".join([nodes, *counts])]
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


# The nodes, what is the matter with them, and what has happened


def _nodes(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    head, *table = _table(rows, screen)
    matters = list(_matter_lines(rows, screen))
    if height is None:
        look.first, look.visible = 0, len(table)
        newest = (_event_text(event, shown) for event in _notable(shown)[-MOST_EVENTS_AT_ONCE:])
        wrapped = itertools.chain.from_iterable(_wrapped(text, screen, indent=2) for text in newest)
        return [head, *table, *matters, *wrapped]
    most = max(height // SHARE_OF_MATTERS, height - 1 - len(table) - 2)
    matters = _at_most(matters, min(most, max(height - 1 - LEAST_ROWS, 0)))
    left = height - 1 - len(matters)
    kept = MOST_EVENTS if left >= LEAST_FOR_EVENTS else 0
    for_events = max(left - len(table), kept) - 1  # below a line of its own
    events = _notable(shown)[-for_events:] if for_events > 0 else ()
    look.visible = max(left - (1 + len(events) if events else 0), 0)
    look.clamp(len(table))
    seen = table[look.first : look.first + look.visible]
    told = [_event(event, shown, screen) for event in reversed(events)]
    title = [_rule("newest events", screen)] if told else []
    return [head, *seen, *matters, *title, *told]


def _notable(shown: Shown) -> list[RunEvent]:
    """Return the events without checkpoints, of which there are many; key e shows all."""
    return [event for event in shown.events if event.kind != "checkpoint"]


def _matters(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    rows = sorted_rows(shown.rows, look.sort, is_reversed=look.is_reversed)
    lines = list(_matter_lines(rows, screen)) or [Text("  nothing is the matter")]
    return _scrolled(_rule("what is the matter", screen), lines, look, height)


def _all_events(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:
    lines = []
    for event in reversed(shown.events[-MOST_EVENTS_OF_PAGE:]):
        lines += _wrapped(_event_text(event, shown), screen, indent=2)
    title = _rule("events, newest first", screen)
    return _scrolled(title, lines or [Text("  none yet")], look, height)


def _keys(shown: Shown, look: ViewChoices, screen: Screen, height: int | None) -> list[Text]:  # noqa: ARG001
    told = [("q", "quit; ? and Esc: these keys, and back to the nodes")]
    told += [("v", "all that is the matter, in full"), ("e", "all events")]
    told += [("r", "reverse the order; arrows, PgUp, PgDn: scroll")]
    told += [("n", "sort by name"), ("m", "sort by what is the matter")]
    told += [(column.key, f"sort by {column.text}") for column in COLUMNS.values()]
    signs = [("X", "takes no part any more, or harms others"), ("!", "odd"), ("?", "no answer yet")]
    lines = [line for key, text in told for line in _wrapped(f"{key}  {text}", screen, indent=3)]
    lines += [line for key, text in signs for line in _wrapped(f"{key}  {text}", screen, indent=3)]
    return _scrolled(_rule("keys, and signs of nodes", screen), lines, look, height)


def _scrolled(title: Text, lines: list[Text], look: ViewChoices, height: int | None) -> list[Text]:
    look.visible = len(lines) if height is None else max(height - 1, 0)
    look.clamp(len(lines))
    return [title, *lines[look.first : look.first + look.visible]]


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
    widths = _widths(rows, screen.width)
    names = [name for name in ORDER if name in widths]
    titles = [_fitted(_heading(n), widths[n], left=n in (NAME, STATE)) for n in names]
    yield Text(_cut("  " + " ".join(titles), screen), style="bold")
    for row in rows:
        sign = sign_of(row)
        cells = [_cell(row, name, widths[name], screen) for name in names]
        yield Text(_cut(f"{sign} {' '.join(cells)}", screen), style=STYLES[sign])


def _heading(name: str) -> str:
    return COLUMNS[name].heading if name in COLUMNS else name


def _cell(row: NodeRow, name: str, width: int, screen: Screen) -> str:
    if name == CURVE:
        return sparkline(row.losses, width, is_unicode=screen.is_unicode)
    text = {NAME: row.name, STATE: word_of(row)}.get(name)
    if text is None:
        return _fitted(cell_of(row, name), width, left=False)
    shown = printable(text)
    if cell_len(shown) > width:  # a name that has no room: it is whole below, if it matters
        mark = "…" if screen.is_unicode else "~"
        shown = set_cell_size(shown, max(width - 1, 0)) + mark
    return _fitted(shown, width, left=True)


def _widths(rows: Sequence[NodeRow], width: int) -> dict[str, int]:
    longest = max([LEAST_NAME, *(cell_len(printable(row.name)) for row in rows)])
    state = max([len("state"), *(len(word_of(row)) for row in rows)])
    needed = {NAME: min(longest, max(width // 3, LEAST_NAME)), STATE: state}
    for name, column in COLUMNS.items():
        cells = (len(cell_of(row, name)) for row in rows)
        needed[name] = max([column.width, *cells])
    needed[CURVE] = LEAST_CURVE
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
    if left > 0 and NAME in found:
        more = min(left, longest - found[NAME])
        found[NAME] += more
        left -= more
    if CURVE in found:
        found[CURVE] += min(left, MOST_CURVE - LEAST_CURVE)
    return found


def _fitted(text: str, width: int, *, left: bool) -> str:
    fitting = set_cell_size(text, width) if cell_len(text) > width else text
    blanks = " " * (width - cell_len(fitting))
    return fitting + blanks if left else blanks + fitting


def _cut(line: str, screen: Screen) -> str:
    return set_cell_size(line, min(cell_len(line), screen.width)).rstrip()


# Texts


def _matter_lines(rows: Sequence[NodeRow], screen: Screen) -> Iterator[Text]:
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
        whom = f", waits for {listed(waits_for)}" if waits_for else ""
        found.append((" ", f"finishing{whom}: {listed(names)}"))
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
    for sign, text in found:
        yield from _wrapped(f"{sign} {text}", screen, indent=2, style=STYLES[sign])


def _event_text(event: RunEvent, shown: Shown) -> str:
    moment = time.strftime("%H:%M:%S", time.localtime(event.time))
    wide = min(max([0, *(len(other.about) for other in shown.events)]), MOST_ABOUT)
    by = f", noticed by {event.node}" if event.node not in ("", event.about) else ""
    text = f": {event.text}" if event.text else ""
    kind = event.kind.replace("_", " ")
    return f"{moment} {event.about:<{max(wide, 1)}} {kind}{by}{text}"


def _event(event: RunEvent, shown: Shown, screen: Screen) -> Text:
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


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else number(round(value))


def _tenths(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else number(value)


def _waiting(row: NodeRow) -> Value:
    return None if row.rates.shares is None else row.rates.shares["wait"]


def _staleness(row: NodeRow) -> Value:
    return row.rates.staleness


def _mapped(row: NodeRow) -> Value:
    return row.rates.mapped_per_s


def _distance(row: NodeRow) -> Value:
    return row.consensus_distance


_COLUMNS = (
    Column("loss", "l", "loss", 7, lambda r: r.loss, number, "training loss"),
    Column("clock", "c", "clock", 6, lambda r: r.clock, number, "training clock"),
    Column("taken", "z", "steps", 6, lambda r: r.steps, number, "steps of this process so far"),
    Column("steps", "s", "steps/s", 7, lambda r: r.rates.steps_per_s, _short, "steps a second"),
    Column("rounds", "u", "rounds/s", 8, lambda r: r.rates.rounds_per_s, _short, "rounds a second"),
    Column("wait", "w", "wait", 5, _waiting, _percent, "share of the time waiting for peers"),
    Column("in", "i", "in/s", 7, lambda r: r.rates.received_per_s, size, "bytes received a second"),
    Column("out", "o", "out/s", 7, lambda r: r.rates.sent_per_s, size, "bytes sent a second"),
    Column("mapped", "a", "map/s", 7, _mapped, size, "bytes read from memory of peers a second"),
    Column("staleness", "t", "stale", 5, _staleness, _tenths, "staleness of what is merged"),
    Column("distance", "d", "distance", 8, _distance, _short, "consensus distance"),
    Column("score", "p", "score", 5, lambda r: r.score, _short, "score that its peers give it"),
)
COLUMNS = {column.name: column for column in _COLUMNS}
NAME, STATE, CURVE = "name", "state", "curve"
SORTS = {NAME: "n", STATE: "m", **{name: column.key for name, column in COLUMNS.items()}}
# As they stand, and from what is left out last to what is left out first.
ORDER = [NAME, STATE, "loss", CURVE, "clock", "taken", "steps", "rounds", "wait", "in", "out"]
ORDER += ["mapped", "staleness", "distance", "score"]
IMPORTANCE = [NAME, STATE, "loss", "steps", "wait", CURVE, "clock", "taken", "rounds", "mapped"]
IMPORTANCE += ["in", "out", "staleness", "distance", "score"]


def word_of(row: NodeRow) -> str:
    """Return what is the matter with a node in short; its state if nothing is."""
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


def cell_of(row: NodeRow, name: str) -> str:
    column = COLUMNS[name]
    value = column.value(row)
    if value is None or math.isnan(value):
        return "-"
    return "inf" if math.isinf(value) else column.cell(value)


def sorted_rows(rows: Sequence[NodeRow], by: str, *, is_reversed: bool = False) -> list[NodeRow]:
    """Return the rows, the smallest first; those of which the value is not known are last.

    By state, those are first with which something is the matter.
    """
    by_name = sorted(rows, key=lambda row: natural_order(row.name))
    if by == NAME:
        return by_name[::-1] if is_reversed else by_name
    if by == STATE:
        return sorted(by_name, key=lambda row: "X!? ".index(sign_of(row)), reverse=is_reversed)
    value = COLUMNS[by].value
    known = [(found, row) for row in by_name if _is_known(found := value(row))]
    known.sort(key=lambda pair: pair[0] or 0.0, reverse=is_reversed)
    return [row for _, row in known] + [row for row in by_name if not _is_known(value(row))]


def sparkline(losses: Sequence[float], width: int, *, is_unicode: bool) -> str:
    """Draw losses, oldest first, each character the mean of as many; blank where there is none."""
    blocks = BLOCKS if is_unicode else ASCII_BLOCKS
    newest = [_mean(part) for part in _parts(losses, width)]
    finite = [loss for loss in newest if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    step = (high / 2 - low / 2) / (len(blocks) - 1) * 2 or 1.0
    drawn = ""
    for loss in newest:
        if math.isnan(loss):
            drawn += " "
        elif math.isinf(loss):
            drawn += "^"
        else:
            drawn += blocks[min(int(loss / step - low / step + 0.5), len(blocks) - 1)]
    return drawn.rjust(width)


def _parts(losses: Sequence[float], width: int) -> list[Sequence[float]]:
    """Cut losses in as many parts as there are characters; in fewer if there are fewer losses."""
    count = min(len(losses), width)
    edges = [index * len(losses) // count for index in range(count + 1)] if count else [0]
    return [losses[first:last] for first, last in itertools.pairwise(edges)]


def _mean(losses: Sequence[float]) -> float:
    known = [loss for loss in losses if not math.isnan(loss)]
    return sum(loss / len(known) for loss in known) if known else math.nan


def _is_known(value: Value) -> bool:
    return value is not None and not math.isnan(value)
