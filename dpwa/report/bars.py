"""Pictures by node: where its seconds went, its bytes, and how stale was what it merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpwa.node.report import HistogramReport
from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_data import NodeLog, Run
from dpwa.report.style import FAINT, INK, MOST_LABELLED, PALETTE, label, legend, nothing, short
from dpwa.report.wording import share, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats
from dpwa.report.facts import Facts
from dpwa.report.style import (
    LINE,
    OTHERS,
    time_unit,
)

ROW_INCHES = 0.2
ACTIVITY_COLOURS = dict(
    zip(ACTIVITIES, (PALETTE[0], PALETTE[5], PALETTE[4], PALETTE[2]), strict=True)
)
_TRAFFIC = (
    ("sent", PALETTE[0]),
    ("received", PALETTE[4]),
    ("mapped", PALETTE[2]),
)
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def height_of(nodes: int) -> float:
    """Return how high a picture with a bar for each node is, in inches."""
    return min(6.0, max(2.2, 1.3 + ROW_INCHES * nodes))


def shares_of(node: NodeLog) -> dict[str, float] | None:
    """Return which share of its time a node spent on what; `None` if it does not say."""
    spent = {activity: node.total(f"{activity}_s") for activity in ACTIVITIES}
    total = sum(spent.values())
    return {activity: s / total for activity, s in spent.items()} if total > 0 else None


def traffic_of(node: NodeLog) -> dict[str, float]:
    """Return the bytes that a node has sent, received, and merged without receiving them."""
    merged, received = node.total("merged_bytes"), node.total("received_bytes")
    mapped = max(0.0, merged - received)
    return {"sent": node.total("sent_bytes"), "received": received, "mapped": mapped}


def draw_time(figure: Figure, run: Run) -> None:
    """Draw a bar for each node: which share of its time went where."""
    axes = figure.subplots()
    shares = {name: shares_of(node) for name, node in run.nodes.items()}
    if not any(shares.values()):
        nothing(axes, "No node has told where its time went.")
        return
    left = np.zeros(len(shares))
    for activity in ACTIVITIES:
        widths = np.array([100 * s[activity] if s else 0.0 for s in shares.values()])
        axes.barh(range(len(shares)), widths, left=left, color=ACTIVITY_COLOURS[activity])
        left += widths
    axes.set_xlim(0, 100)
    label(axes, "share of the time (%); on the right, what is gossip", "", grid="")
    name_rows(axes, list(shares))
    for row in range(0, len(shares), _step(len(shares))):
        if found := list(shares.values())[row]:
            gossip = share(max(0.0, 1.0 - found["train"]))
            axes.text(101, row, gossip, va="center", color=FAINT, fontsize=8)
    legend(figure, [_patch(ACTIVITY_COLOURS[a], a) for a in ACTIVITIES])


def draw_bytes(figure: Figure, run: Run) -> None:
    """Draw two bars for each node: bytes sent, and below them bytes received and mapped."""
    axes = figure.subplots()
    traffic = {name: traffic_of(node) for name, node in run.nodes.items()}
    most = max(max(bars.values()) for bars in traffic.values())
    if not most:
        nothing(axes, "No bytes were exchanged.")
        return
    length, unit = next((u for u in _UNITS if most >= u[0]), _UNITS[-1])
    came = np.zeros(len(traffic))
    for kind, colour in _TRAFFIC:
        widths = np.array([bars[kind] / length for bars in traffic.values()])
        rows = np.arange(len(traffic)) + (-0.2 if kind == "sent" else 0.2)
        axes.barh(rows, widths, height=0.36, left=0.0 if kind == "sent" else came, color=colour)
        came += 0.0 if kind == "sent" else widths
    label(axes, unit, "", grid="x")
    name_rows(axes, list(traffic))
    totals = {kind: sum(bars[kind] for bars in traffic.values()) for kind, _ in _TRAFFIC}
    legend(figure, [_patch(c, f"{kind} {size(totals[kind])}") for kind, c in _TRAFFIC], 3)


def staleness_of(run: Run) -> HistogramReport | None:
    """Return how stale what all nodes have merged was; `None`: no node tells."""
    told = [node.staleness for node in run.nodes.values() if node.staleness is not None]
    if not told:
        return None
    alike = [bins.counts for bins in told if bins.bounds == told[0].bounds]
    return HistogramReport(
        told[0].bounds, tuple(sum(counts) for counts in zip(*alike, strict=True))
    )


def draw_staleness(figure: Figure, run: Run) -> None:
    """Draw how many updates what was merged lay behind the node that merged it."""
    axes = figure.subplots()
    bins = staleness_of(run)
    if bins is None or not sum(bins.counts):
        nothing(axes, "Nothing was merged.")
        return
    last = max(index for index, count in enumerate(bins.counts) if count)
    counts, names = bins.counts[: last + 1], _bin_names(bins.bounds)[: last + 1]
    total = sum(counts)
    bars = axes.bar(range(len(counts)), counts, color=PALETTE[0], width=0.85)
    axes.bar_label(bars, [_percent(c / total) for c in counts], color=INK, fontsize=8.5, padding=2)
    axes.set_xticks(range(len(counts)), names)
    axes.margins(y=0.12)
    axes.tick_params(axis="x", labelsize=8.5)
    label(axes, "updates behind, at most (0: or ahead)", "merges")


def _bin_names(bounds: Sequence[float]) -> list[str]:
    return [*(f"{bound:g}" for bound in bounds), "more" if bounds else "all"]


def _percent(part: float) -> str:
    if part == 0:
        return ""
    return f"{100 * part:.0f} %" if part >= 0.01 else "<1 %"


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Have a row for each name, the first on top."""
    rows = range(0, len(names), _step(len(names)))
    axes.set_yticks(rows, [short(names[row]) for row in rows])
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top
    axes.tick_params(axis="y", length=0)


def _step(rows: int) -> int:
    return -(-rows // MOST_LABELLED)


def _patch(colour: str, text: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=text)


MOST_WRITTEN = 10  # nodes of which each cell has its number
DARK_CELL = 0.55  # of the largest: text on it is white
MOMENTS = 80  # of a time line: what several nodes notice in one of them is one mark


@dataclass(frozen=True)
class Mark:
    """How a kind of event is shown.

    Attributes:
        marker: of matplotlib.
        colour: in light.
        text: in the legend.
    """

    marker: str
    colour: str
    text: str


MARKS = {
    "joined": Mark("^", PALETTE[2], "joined"),
    "left": Mark("v", PALETTE[7], "left"),
    "checkpoint": Mark("|", PALETTE[0], "checkpoint"),
    "skipped": Mark("1", PALETTE[7], "snapshot skipped"),
    "refused": Mark("_", PALETTE[3], "refused"),
    "silent": Mark("o", PALETTE[5], "silent"),
    "suspect": Mark("d", PALETTE[4], "suspect"),
    "unreachable": Mark("x", PALETTE[1], "unreachable"),
    "quarantined": Mark("s", PALETTE[3], "quarantined"),
    "released": Mark("D", PALETTE[2], "released"),
    "diverged": Mark("*", PALETTE[1], "diverged"),
    "log_failed": Mark("P", PALETTE[4], "log not written"),
    "dead": Mark("X", PALETTE[6], "dead"),
    "lost": Mark("X", PALETTE[1], "log ends without an end line"),
}


def merges_of(run: Run) -> Floats:
    """Return how often each node has merged each other, shape `(nodes, nodes)`."""
    names = list(run.nodes)
    position = {name: index for index, name in enumerate(names)}
    found = np.zeros((len(names), len(names)))
    for name, node in run.nodes.items():
        for other, exchanged in node.exchanged.items():
            if other in position:
                found[position[name], position[other]] += exchanged.merges
    return found


def draw_pairs(figure: Figure, run: Run) -> None:
    """Draw how often each node has merged each other: one cell a pair."""
    from matplotlib import colormaps

    axes = figure.subplots()
    names, merges = list(run.nodes), merges_of(run)
    if not merges.any():
        nothing(axes, "Nothing was merged.")
        return
    shown = np.where(merges > 0, merges, np.nan)
    colours = colormaps["cividis_r"]
    image = axes.imshow(shown, cmap=colours, vmin=0, interpolation="none", aspect="equal")
    if len(names) <= MOST_WRITTEN:
        for (row, column), count in np.ndenumerate(merges):
            if count:
                is_dark = count > DARK_CELL * merges.max()
                colour = "#ffffff" if is_dark else "#111111"
                written = f"{count:.0f}" if count < 10_000 else f"{count / 1000:.0f}k"
                axes.text(column, row, written, ha="center", va="center", color=colour, fontsize=8)
    label(axes, "merged node", "merging node", grid="")
    name_rows(axes, names)
    step = -(-len(names) // MOST_LABELLED)
    columns = range(0, len(names), step)
    axes.set_xticks(columns, [short(names[c]) for c in columns])
    is_long = max(map(len, names)) * len(columns) > 40
    axes.tick_params(axis="x", length=0, rotation=90 if is_long else 0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("merges", color=FAINT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=FAINT, length=3)


def draw_events(figure: Figure, facts: Facts) -> None:
    """Draw a line for each node while it was there, and marks where something happened to it."""
    axes = figure.subplots()
    run = facts.run
    length, unit = time_unit(run.seconds)
    width = 2.5 if len(run.nodes) <= MOST_LABELLED else 1.2
    rows = {name: row for row, name in enumerate(run.nodes)}
    for name, node in run.nodes.items():
        for process in node.processes:
            ends = [(at - run.began) / length for at in (process.began, process.last)]
            axes.plot(ends, [rows[name]] * 2, color=OTHERS, linewidth=width, solid_capstyle="butt")
    marked = _marks(facts)
    handles = []
    for kind, mark in MARKS.items():
        places = [((at - run.began) / length, rows[name]) for at, name in marked.get(kind, ())]
        if places:
            _scatter(axes, places, mark)
            handles.append(_handle(mark))
    axes.margins(x=0.02)
    label(axes, f"{unit} since the start", "", grid="x")
    name_rows(axes, list(run.nodes))
    axes.spines["left"].set_visible(False)
    legend(figure, handles, 3)


def moments(run: Run, most: int | None = None) -> list[tuple[RunEvent, list[str]]]:
    """Return what happened, each with all who have noticed it at about the same time.

    Args:
        run: what its files say.
        most: how many moments at most; the rarest kinds come first, the order is that of time.
    """
    window_s = max(2.0, run.seconds / MOMENTS)
    found: list[tuple[RunEvent, list[str]]] = []
    newest: dict[tuple[str, str], tuple[RunEvent, list[str]]] = {}
    events = [event for node in run.nodes.values() for event in node.events]
    for event in sorted(events, key=lambda event: event.time):
        key = (event.kind, event.about)
        known = newest.get(key)
        if known is not None and event.time - known[0].time < window_s:
            if event.node not in known[1]:
                known[1].append(event.node)
            continue
        newest[key] = (event, [event.node])
        found.append(newest[key])
    if most is None or len(found) <= most:
        return found
    counts = {kind: sum(e.kind == kind for e, _ in found) for kind in {e.kind for e, _ in found}}
    kept = sorted(found, key=lambda moment: counts[moment[0].kind])[:most]
    return sorted(kept, key=lambda moment: moment[0].time)


def _marks(facts: Facts) -> dict[str, list[tuple[float, str]]]:
    """Return when what happened to whom, by kind."""
    found: dict[str, list[tuple[float, str]]] = {}
    for event, _ in moments(facts.run):
        if event.kind in MARKS and event.about in facts.run.nodes:
            found.setdefault(event.kind, []).append((event.time, event.about))
    for name, node in facts.nodes.items():
        lost = [process.last for process in node.log.processes[:-1] if not process.ended]
        if node.end == "lost":
            lost.append(node.log.last)
        found.setdefault("lost", []).extend((at, name) for at in lost)
    return found


def _scatter(axes: Axes, places: list[tuple[float, int]], mark: Mark) -> None:
    x, y = zip(*places, strict=True)
    is_line = mark.marker in "x|_1"
    edge: Any = {} if is_line else {"edgecolors": LINE, "linewidths": 0.5}
    axes.scatter(x, y, marker=mark.marker, color=mark.colour, s=34, zorder=3, **edge)


def _handle(mark: Mark) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=mark.colour, marker=mark.marker, linestyle="none", label=mark.text)
