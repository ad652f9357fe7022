"""The pictures of a report about one run or several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpwa.node.report import HistogramReport
from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_log_contents import Run
from dpwa.report.curves import (
    Band,
    as_bands,
    band_of,
    curves_of,
    loss_by_steps,
    speed_curves,
    taken_in,
)
from dpwa.report.facts import Facts
from dpwa.report.style import (
    FAINT,
    INK,
    MAX_COLOURS,
    MAX_LABELLED,
    OTHERS,
    PALETTE,
    Chart,
    LineStyle,
    Looks,
    label,
    legend,
    line_handles,
    looks_of,
    scale,
    short,
    time_unit,
)
from dpwa.report.wording import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

ROW_INCHES = 0.2
MAX_WRITTEN = 10  # maximum number of nodes with a number in each cell
DARK_CELL = 0.55  # share of the largest value above which text is white
MOMENTS = 80  # number of moments on a time line. Reports of an event in one moment share one mark
BYTES = "bytes"  # unit of an axis
MEAN = ""  # stands for the mean of the nodes
TRAFFIC = ("sent", "received", "mapped")
_COLOURS = {
    **dict(zip(ACTIVITIES, (PALETTE[0], PALETTE[5], PALETTE[4], PALETTE[2]), strict=True)),
    **dict(zip(TRAFFIC, (PALETTE[0], PALETTE[4], PALETTE[2]), strict=True)),
}
_WHY = {
    "diverged": "diverged",
    "gone": "lost",
    "stalled": "stalled",
    "slow": "slow",
    "quarantined": "quarantined",
    "refused": "refused",
    "waiting": "waits",
    "out of sync": "out of sync",
}
_AREA = "The line is the mean of the nodes. The area is from the lowest to the highest value."
_EMPTY = "An empty cell means 0."
_TEXTS = {  # title, explanation, and label of the vertical axis
    "loss": ("Training loss", "The loss that each node reported.", "training loss"),
    "speed": ("Steps per second", "Training steps of each node.", "steps/s"),
    "consensus": (
        "Consensus distance",
        "Distance between the parameters of a node and of the merged peer. 0 while in sync.",
        "consensus distance",
    ),
    "loss-of-runs": ("Loss over time", _AREA, "training loss"),
    "steps-of-runs": ("Loss over steps", _AREA, "training loss"),
    "speed-of-runs": ("Steps per second of a node", _AREA, "steps/s"),
    "bytes-of-runs": (
        "Bytes that all nodes have merged",
        "The sum of merged snapshots and of values in collectives, such as the gradients of "
        "together.",
        BYTES,
    ),
}


def charts_of(runs: Mapping[str, Facts]) -> Iterator[Chart]:
    """Yield charts of the nodes of one run, or charts of several runs. Skip unknown figures."""
    if len(runs) > 1:
        yield from _of_runs(runs)
    for facts in runs.values() if len(runs) == 1 else ():
        yield from _of_nodes(facts)
        yield from _of_exchanges(facts)


def _of_runs(runs: Mapping[str, Facts]) -> Iterator[Chart]:
    best = min(runs, key=lambda name: runs[name].lowest_mean_loss)
    looks = looks_of(list(runs), {best: "lowest loss"})
    seconds = max(facts.run.seconds for facts in runs.values())
    steps = {name: band_of(loss_by_steps(facts.run)) for name, facts in runs.items()}
    speeds = {name: band_of(speed_curves(facts.run)) for name, facts in runs.items()}
    moved = {name: taken_in(facts.run) for name, facts in runs.items()}
    losses = {name: facts.mean_loss for name, facts in runs.items()}
    yield from _lines("loss-of-runs", losses, looks, seconds)
    yield from _lines("steps-of-runs", steps, looks)
    yield from _lines("speed-of-runs", speeds, looks, seconds)
    yield from _lines("bytes-of-runs", moved, looks, seconds)


def _of_nodes(facts: Facts) -> Iterator[Chart]:
    run, looks = facts.run, _looks_of_nodes(facts)
    for name, curves in (
        ("loss", curves_of(run, "loss")),
        ("speed", speed_curves(run)),
        ("consensus", curves_of(run, "consensus_distance")),
    ):
        if MEAN in looks:
            mean = band_of(curves)
            curves = {MEAN: (mean.at, mean.mean), **curves}
        yield from _lines(name, as_bands(curves), looks, run.seconds)
    shares = [node.rates.shares for node in facts.nodes.values()]
    if any(shares):
        spent = {a: [100 * s[a] if s else 0.0 for s in shares] for a in ACTIVITIES}
        yield Chart(
            "time",
            "Use of the time",
            "Training is all time without gossip, such as loading data and computing.",
            partial(draw_rows, names=list(run.nodes), parts=spent, width="share of the time (%)"),
            _height_of(run),
        )


def _of_exchanges(facts: Facts) -> Iterator[Chart]:
    run, names = facts.run, list(facts.nodes)
    if (rounds := pairs_of(run, "rounds")).any():
        text = f"Number of rounds in which both nodes averaged gradients. {_EMPTY}"
        draw = partial(draw_pairs, names=names, counts=rounds, what="rounds")
        yield Chart("rounds", "Averages between nodes", text, draw, 3.6)
    if (merges := pairs_of(run, "merges")).any():
        text = f"Each row is a merging node, and each column is its peer. {_EMPTY}"
        draw = partial(draw_pairs, names=names, counts=merges, what="merges")
        yield Chart("pairs", "Merges between nodes", text, draw, 3.6)
    if (bins := staleness_of(run)) is not None:
        text = "Number of updates by which the peer was behind the merging node."
        draw = partial(draw_staleness, bins=bins)
        yield Chart("staleness", "Staleness of merged snapshots", text, draw)
    moved = {k: [node.total(f"{k}_bytes") for node in run.nodes.values()] for k in TRAFFIC}
    if any(map(any, moved.values())):
        text = "Nodes on one host read each other's memory and send nothing."
        draw = partial(draw_rows, names=names, parts=moved, width=BYTES)
        yield Chart("bytes", "Bytes", text, draw, _height_of(run))
    text = "A line is the lifetime of a node. A mark on the line is an event of that node."
    draw = partial(draw_events, facts=facts)
    yield Chart("events", "Events over time", text, draw, _height_of(run) + 0.6)


def _height_of(run: Run) -> float:
    return min(6.0, max(2.2, 1.3 + ROW_INCHES * len(run.nodes)))


def _looks_of_nodes(facts: Facts) -> Looks:
    """Return the line styles of the nodes. If there are many, only remarkable nodes have a line."""
    remarkable: dict[str, str] = {}
    for kind, why in _WHY.items():
        for name, node in facts.nodes.items():
            if node.is_(kind):
                remarkable.setdefault(name, why)
    best = facts.best
    if best is not None:
        remarkable = {best.name: remarkable.pop(best.name, "best"), **remarkable}
    looks = looks_of(list(facts.nodes), remarkable)
    return looks if len(looks) <= MAX_COLOURS else {MEAN: LineStyle(INK, label="mean"), **looks}


def _lines(
    name: str, bands: Mapping[str, Band], looks: Looks, seconds: float | None = None
) -> Iterator[Chart]:
    """Yield a line chart if any band has points. Without `seconds`, the x axis shows steps."""
    if any(len(band.at) for band in bands.values()):
        title, text, height = _TEXTS[name]
        draw = partial(draw_lines, bands=bands, looks=looks, seconds=seconds, height=height)
        yield Chart(name, title, text, draw)


def draw_lines(
    figure: Figure, bands: Mapping[str, Band], looks: Looks, seconds: float | None, height: str
) -> None:
    axes = figure.subplots()
    length, unit = (1.0, "steps of a node") if seconds is None else time_unit(seconds)
    for name, band in bands.items():
        look, at = looks[name], band.at / length
        marker = "o" if len(at) == 1 else ""
        axes.plot(at, band.mean, marker=marker, markersize=4, **look.line)
        if band.low is not band.mean:
            axes.fill_between(at, band.low, band.high, color=look.colour, alpha=0.18, linewidth=0)
    if height in ("steps/s", BYTES):
        axes.set_ylim(bottom=0)
    else:
        scale(axes, np.concatenate([band.low for band in bands.values()]))
    axes.margins(x=0.01)
    width = unit if seconds is None else f"{unit} since the start"
    label(axes, width, height)
    if height == BYTES:
        _count_bytes(axes.yaxis)
    legend(figure, line_handles(looks, list(bands)), 3 if MEAN in bands else 4)


def draw_rows(
    figure: Figure, names: Sequence[str], parts: Mapping[str, Sequence[float]], width: str
) -> None:
    """Draw a stacked horizontal bar for each node."""
    axes = figure.subplots()
    left = np.zeros(len(names))
    bars = []
    for part, widths in parts.items():
        text = f"{part} {size(sum(widths))}" if width == BYTES else part
        rows = range(len(names))
        bars.append(axes.barh(rows, widths, left=left, color=_COLOURS[part], label=text))
        left += widths
    axes.margins(x=0.0)
    label(axes, width, "", grid="x")
    if width == BYTES:
        _count_bytes(axes.xaxis)
    name_rows(axes, names)
    legend(figure, bars)


def _count_bytes(axis: Axis) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(EngFormatter("B"))
    axis.set_label_text("")


def draw_pairs(figure: Figure, names: Sequence[str], counts: Floats, what: str) -> None:
    axes = figure.subplots()
    shown = np.where(counts > 0, counts, np.nan)
    image = axes.imshow(shown, cmap="cividis_r", vmin=0, interpolation="none")
    for (row, column), count in np.ndenumerate(counts):
        if count and len(names) <= MAX_WRITTEN:
            colour = "#ffffff" if count > DARK_CELL * counts.max() else "#111111"
            written = f"{count:.0f}" if count < 10_000 else f"{count / 1000:.0f}k"
            axes.text(column, row, written, ha="center", va="center", color=colour, fontsize=8)
    titles = ("merged node", "merging node") if what == "merges" else ("node", "node")
    label(axes, *titles, grid="")
    name_rows(axes, names)
    columns = range(0, len(names), _step(names))
    axes.set_xticks(columns, [short(names[column]) for column in columns], rotation=90)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(what, color=FAINT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=FAINT, length=3)


def pairs_of(run: Run, what: Literal["merges", "rounds"]) -> Floats:
    """Return the number of merges or rounds of each pair of nodes, shape `(nodes, nodes)`."""
    position = {name: index for index, name in enumerate(run.nodes)}
    found = np.zeros((len(position), len(position)))
    for name, node in run.nodes.items():
        for other, exchanged in node.exchanged.items():
            if other in position:
                found[position[name], position[other]] = getattr(exchanged, what)
    return found


def draw_staleness(figure: Figure, bins: HistogramReport) -> None:
    """Draw a histogram of the number of updates by which merged snapshots were behind the node."""
    axes = figure.subplots()
    last = max(index for index, count in enumerate(bins.counts) if count)
    counts = bins.counts[: last + 1]
    names = [*(f"{bound:g}" for bound in bins.bounds), "more"][: last + 1]
    bars = axes.bar(names, counts, color=PALETTE[0], width=0.85)
    shares = [f"{100 * count / sum(counts):.0f} %" if count else "" for count in counts]
    axes.bar_label(bars, shares, color=INK, fontsize=8.5, padding=2)
    axes.margins(y=0.12)
    axes.tick_params(axis="x", labelsize=8.5)
    label(axes, "updates behind, at most (0 includes ahead)", "merges")


def staleness_of(run: Run) -> HistogramReport | None:
    """Return the histogram of staleness of all merges, or `None` if it is unknown."""
    told = [n.staleness for n in run.nodes.values() if n.staleness and any(n.staleness.counts)]
    alike = [bins.counts for bins in told if bins.bounds == told[0].bounds]
    sums = tuple(sum(counts) for counts in zip(*alike, strict=True))
    return HistogramReport(told[0].bounds, sums) if told else None


MARKS = {  # marker of matplotlib, and colour on light pages
    "joined": ("^", PALETTE[2]),
    "finished": ("v", PALETTE[2]),
    "left": ("v", PALETTE[7]),
    "checkpoint": ("|", PALETTE[0]),
    "in_sync": (">", PALETTE[2]),
    "out_of_sync": ("<", PALETTE[4]),
    "skipped": ("1", PALETTE[7]),
    "refused": ("_", PALETTE[3]),
    "silent": ("o", PALETTE[5]),
    "suspect": ("d", PALETTE[4]),
    "unreachable": ("x", PALETTE[1]),
    "quarantined": ("s", PALETTE[3]),
    "released": ("D", PALETTE[2]),
    "diverged": ("*", PALETTE[1]),
    "log_failed": ("P", PALETTE[4]),
    "dead": ("X", PALETTE[6]),
    "log ends without an end line": ("X", PALETTE[1]),
}


def draw_events(figure: Figure, facts: Facts) -> None:
    """Draw a line for each node while it was present, and marks for its events."""
    axes = figure.subplots()
    run = facts.run
    length, unit = time_unit(run.seconds)
    width = 2.5 if len(run.nodes) <= MAX_LABELLED else 1.2
    rows = {name: row for row, name in enumerate(run.nodes)}
    for name, node in run.nodes.items():
        for process in node.processes:
            ends = [(at - run.began) / length for at in (process.began, process.last)]
            axes.plot(ends, [rows[name]] * 2, color=OTHERS, linewidth=width, solid_capstyle="butt")
    marked = _marks(facts)
    handles = []
    for kind, (marker, colour) in MARKS.items():
        if places := marked.get(kind):
            at, names = zip(*places, strict=True)
            handles += axes.plot(
                (np.array(at) - run.began) / length,
                [rows[name] for name in names],
                marker,
                color=colour,
                label=kind.replace("_", " "),
            )
    axes.margins(x=0.02)
    label(axes, f"{unit} since the start", "", grid="x")
    name_rows(axes, list(run.nodes))
    axes.spines["left"].set_visible(False)
    legend(figure, handles, 2)  # the labels are long


def _marks(facts: Facts) -> dict[str, list[tuple[float, str]]]:
    """Return the times and nodes of events, by kind."""
    found: dict[str, list[tuple[float, str]]] = {}
    for event, _ in moments(facts.run):
        if event.about in facts.nodes:
            found.setdefault(event.kind, []).append((event.time, event.about))
    for name, node in facts.nodes.items():
        lost = [process.last for process in node.log.processes[:-1] if not process.ended]
        lost += [node.log.last] if node.end == "lost" else []
        found.setdefault("log ends without an end line", []).extend((at, name) for at in lost)
    return found


def moments(run: Run, most: int | None = None) -> list[tuple[RunEvent, list[str]]]:
    """Return the events, each with all nodes that noticed it at about the same time.

    If there are more than `most`, only the rarest kinds are returned, in order of time.
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


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label rows with names, from top to bottom. With many rows, only every N-th has a label."""
    rows = range(0, len(names), _step(names))
    axes.set_yticks(rows, [short(names[row]) for row in rows])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _step(names: Sequence[str]) -> int:
    return -(-len(names) // MAX_LABELLED)
