"""Pictures with a row for each node: who has merged whom, and what happened when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats
from dpwa.observe.run_data import Run
from dpwa.report.bars import name_rows
from dpwa.report.facts import Facts
from dpwa.report.style import (
    FAINT,
    LINE,
    MOST_LABELLED,
    OTHERS,
    PALETTE,
    label,
    legend,
    nothing,
    short,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
