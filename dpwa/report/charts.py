"""The pictures of a report: what each shows, and what it says to those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpwa.node.report import HistogramReport
from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_data import NodeLog, Run
from dpwa.report.facts import Facts
from dpwa.report.style import (
    FAINT,
    HEIGHT,
    INK,
    LINE,
    MOST_LABELLED,
    OTHERS,
    PALETTE,
    Chart,
    Looks,
    label,
    legend,
    line_handles,
    looks_of,
    nothing,
    scale,
    short,
    time_unit,
)
from dpwa.report.wording import duration, names, number, plural, share, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING_HEIGHT = 1.0  # inches
ROW_INCHES = 0.2
MOST_POINTS = 240  # of a curve
MOST_POINTS_OF_ALL = 8_000
SPEED_WINDOWS = 60  # of a run, over each of which a speed is taken
LEAST_WINDOW_S = 3.0
MOST_WRITTEN = 10  # nodes of which each cell has its number
DARK_CELL = 0.55  # of the largest: text on it is white
MOMENTS = 80  # of a time line: what several nodes notice in one of them is one mark
ACTIVITY_COLOURS = dict(
    zip(ACTIVITIES, (PALETTE[0], PALETTE[5], PALETTE[4], PALETTE[2]), strict=True)
)
_TRAFFIC = (
    ("sent", PALETTE[0]),
    ("received", PALETTE[4]),
    ("mapped", PALETTE[2]),
)
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
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
Curve = tuple[Floats, Floats]  # times in seconds since the epoch, and values


def looks_for(facts: Facts) -> Looks:
    """Return how the nodes of a run are drawn: of many, those that stand out."""
    remarkable: dict[str, str] = {}
    for kind, why in _WHY.items():
        for name, node in facts.nodes.items():
            if node.is_(kind):
                remarkable.setdefault(name, why)
    best = facts.best
    if best is not None:
        remarkable = {best.name: remarkable.pop(best.name, "best"), **remarkable}
    return looks_of(list(facts.nodes), remarkable)


def training_charts(facts: Facts, looks: Looks) -> list[Chart]:
    run = facts.run
    height = HEIGHT if facts.steps else MISSING_HEIGHT
    has_distance = any(np.isfinite(d).any() for _, d in distance_curves(run).values())
    return [
        Chart(
            "loss",
            "Training loss",
            "What each node has told with its updates.",
            _alt_of_loss(facts),
            lambda figure: draw_loss(figure, facts, looks),
            height,
        ),
        Chart(
            "speed",
            "Steps per second",
            "Training steps that each node has taken.",
            _alt_of_speed(facts),
            lambda figure: draw_speed(figure, facts, looks),
            height,
        ),
        Chart(
            "consensus",
            "Consensus distance",
            "How far the parameters of a node were from those that it merged; 0 in sync.",
            _alt_of_distance(facts),
            lambda figure: draw_distance(figure, facts, looks),
            HEIGHT if has_distance else MISSING_HEIGHT,
        ),
        Chart(
            "time",
            "Where the time went",
            "Training is whatever is no gossip: loading data, computing, and what a node does "
            "before its first update.",
            _alt_of_time(facts),
            lambda figure: draw_time(figure, facts),
            height_of(len(run.nodes)) if facts.steps else MISSING_HEIGHT,
        ),
    ]


def gossip_charts(facts: Facts) -> list[Chart]:
    run = facts.run
    has_merged, has_rounds = bool(pairs_of(run, "merges").any()), bool(facts.rounds)
    rounds = Chart(
        "rounds",
        "Who has averaged with whom",
        "Rounds of gradients in which both nodes were in sync; an empty cell is a pair that never "
        "was.",
        _alt_of_pairs(facts, "rounds"),
        lambda figure: draw_pairs(figure, facts, "rounds"),
        3.6,
    )
    return [
        *([rounds] if has_rounds else []),
        Chart(
            "pairs",
            "Who has merged whom",
            "A row is the node that merges, a column the node whose parameters it took; an empty "
            "cell is a pair that never did.",
            _alt_of_pairs(facts, "merges"),
            lambda figure: draw_pairs(figure, facts, "merges"),
            3.6 if has_merged else MISSING_HEIGHT,
        ),
        Chart(
            "staleness",
            "Staleness of what was merged",
            "How many updates the other node was behind the one that merged it.",
            _alt_of_staleness(facts),
            lambda figure: draw_staleness(figure, facts),
            HEIGHT if has_merged else MISSING_HEIGHT,
        ),
        Chart(
            "bytes",
            "Bytes",
            "For each node what went out, and below it what came in. What nodes on one host map "
            "from each other is not sent.",
            _alt_of_bytes(facts),
            lambda figure: draw_bytes(figure, run),
            height_of(len(run.nodes)) + 0.6,
        ),
        Chart(
            "events",
            "What happened when",
            "A line is the life of a node; a mark on it is what happened to that node.",
            _alt_of_events(facts),
            lambda figure: draw_events(figure, facts),
            height_of(len(run.nodes)) + 0.6,
        ),
    ]


def height_of(nodes: int) -> float:
    return min(6.0, max(2.2, 1.3 + ROW_INCHES * nodes))


def _untrained(facts: Facts, otherwise: str) -> str:
    """Say why something is missing: no node has trained, or another reason."""
    return otherwise if facts.steps else "No node has taken a training step."


def _unmerged(facts: Facts) -> str:
    in_sync = "No snapshot was merged: nodes in sync average their gradients."
    return _untrained(facts, in_sync if facts.rounds else "Nothing was merged.")


def draw_loss(figure: Figure, facts: Facts, looks: Looks) -> None:
    run, missing = facts.run, _untrained(facts, "No node has told its loss.")
    curves = {name: _curve(node, "loss") for name, node in run.nodes.items()}
    _draw(figure, run, looks, curves, "training loss", missing)


def _alt_of_loss(facts: Facts) -> str:
    losses, best = facts.losses, facts.best
    if not losses or best is None or best.log.best is None:
        return "No loss is known."
    return (
        f"Loss of {plural(len(facts.nodes), 'node')} over {duration(facts.run.seconds)}. At the "
        f"end it lies between {number(min(losses))} and {number(max(losses))}; the lowest ever is "
        f"{number(best.log.best.loss)}, of {best.name}."
    )


def draw_speed(figure: Figure, facts: Facts, looks: Looks) -> None:
    curves = speed_curves(facts.run) if facts.steps else {}
    missing = "No node has taken a training step."
    axes = _draw(figure, facts.run, looks, curves, "steps per second", missing)
    if axes is not None and axes.get_yscale() != "log":
        axes.set_ylim(bottom=0)


def _alt_of_speed(facts: Facts) -> str:
    speeds = {n: f.rates.steps_per_s for n, f in facts.nodes.items() if f.rates.steps_per_s}
    if not speeds:
        return "No speed is known."
    slowest, fastest = min(speeds, key=lambda n: speeds[n]), max(speeds, key=lambda n: speeds[n])
    return (
        f"Steps per second of each node. The fastest is {fastest} with {number(speeds[fastest], 3)}"
        f", the slowest {slowest} with {number(speeds[slowest], 3)}."
    )


def speed_curves(run: Run) -> dict[str, Curve]:
    window_s = max(min(LEAST_WINDOW_S, run.seconds / 4), run.seconds / SPEED_WINDOWS)
    return {name: speed(node, window_s) for name, node in run.nodes.items()}


def speed(node: NodeLog, window_s: float) -> Curve:
    """Return the training steps per second of a node, over windows of at least this length.

    A window over a restart has the pause in it.
    """
    times, steps = node.times, node.figure("steps")
    known = np.isfinite(steps)
    times, steps = times[known], steps[known]
    edges = [0] if len(times) else []
    for index in range(1, len(times)):
        if times[index] - times[edges[-1]] >= window_s:
            edges.append(index)
    at, counted = times[edges], steps[edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (at[1:] + at[:-1]) / 2, np.diff(counted) / np.diff(at)


def draw_distance(figure: Figure, facts: Facts, looks: Looks) -> None:
    """Draw how far each node is from the peer that it has merged last."""
    run = facts.run
    missing = "No node has measured it: the adapters for PyTorch do,\nDpwaConnection does not."
    if not pairs_of(run, "merges").any():
        missing = _untrained(facts, "It is measured at a merge, and none was made.")
    curves = distance_curves(run)
    _draw(figure, run, looks, curves, "consensus distance", missing)


def _alt_of_distance(facts: Facts) -> str:
    at, middle = middle_of(distance_curves(facts.run))
    if not len(at):
        return "No consensus distance is known."
    return (
        f"Median distance between the nodes: {number(float(middle[0]), 3)} at the beginning, "
        f"{number(float(middle[-1]), 3)} at the end."
    )


def distance_curves(run: Run) -> dict[str, Curve]:
    return {name: _curve(node, "consensus_distance") for name, node in run.nodes.items()}


def _curve(node: NodeLog, figure: str) -> Curve:
    values = node.figure(figure)
    known = ~np.isnan(values)
    return node.times[known], values[known]


def _draw(
    figure: Figure,
    run: Run,
    looks: Looks,
    curves: Mapping[str, Curve],
    height: str,
    missing: str,
) -> Axes | None:
    axes = figure.subplots()
    if not any(np.isfinite(values).any() for _, values in curves.values()):
        nothing(axes, missing)
        return None
    length, unit = time_unit(run.seconds)
    most = max(40, min(MOST_POINTS, MOST_POINTS_OF_ALL // len(curves)))
    for name, (times, values) in curves.items():
        at, thinned = sparse(times, values, most)
        if len(at):
            dots: dict[str, Any] = {"marker": "o", "markersize": 4} if len(at) == 1 else {}
            axes.plot((at - run.began) / length, thinned, **looks[name].line, **dots)
    is_crowded = any(not look.label for look in looks.values())
    if is_crowded:
        at, middle = middle_of(curves)
        axes.plot((at - run.began) / length, middle, color=INK, linewidth=1.6, zorder=4)
    scale(axes, np.concatenate([values for _, values in curves.values()]))
    axes.margins(x=0.01)
    is_log = axes.get_yscale() == "log"
    label(axes, f"{unit} since the start", height + (", log scale" if is_log else ""))
    handles = line_handles(looks, list(curves))
    if is_crowded:
        from matplotlib.lines import Line2D

        handles.insert(0, Line2D([], [], color=INK, linewidth=2, label="median"))
    legend(figure, handles, 3 if is_crowded else 4)
    return axes


def middle_of(curves: Mapping[str, Curve]) -> Curve:
    """Return the median of several curves at each moment, of those that are there then."""
    there = [(times, values) for times, values in curves.values() if len(times)]
    if not there:
        return np.empty(0), np.empty(0)
    grid = np.linspace(min(t[0] for t, _ in there), max(t[-1] for t, _ in there), MOST_POINTS)
    rows = np.stack([at_each(grid, *curve) for curve in there])
    is_known = np.isfinite(rows).any(axis=0)
    rows[np.isinf(rows)] = np.nan
    is_known &= ~np.isnan(rows).all(axis=0)
    return grid[is_known], np.nanmedian(rows[:, is_known], axis=0)


def at_each(grid: Floats, times: Floats, values: Floats) -> Floats:
    """Return the value of a curve at each moment; NaN before its begin and after its end."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(grid), np.nan)
    found: Floats = np.interp(grid, times[known], values[known], left=np.nan, right=np.nan)
    return found


def sparse(times: Floats, values: Floats, most: int) -> Curve:
    """Return at most so many points of a curve, the ends among them, without what is infinite."""
    values = np.where(np.isinf(values), np.nan, values)
    if len(times) > most:
        chosen = np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))
        times, values = times[chosen], values[chosen]
    known = ~np.isnan(values)
    return times[known], values[known]


def draw_time(figure: Figure, facts: Facts) -> None:
    axes = figure.subplots()
    shares = {name: shares_of(node) for name, node in facts.run.nodes.items()}
    if not any(shares.values()):
        nothing(axes, _untrained(facts, "No node has told where its time went."))
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


def _alt_of_time(facts: Facts) -> str:
    shares = {name: shares_of(node.log) for name, node in facts.nodes.items()}
    known = {name: found for name, found in shares.items() if found}
    if not known:
        return "It is not known where the time went."
    means = [
        f"{activity} {share(sum(s[activity] for s in known.values()) / len(known))}"
        for activity in ACTIVITIES
    ]
    waiting = max(known, key=lambda name: known[name]["wait"])
    return (
        f"Mean shares of the time: {', '.join(means)}. {waiting} waits the most, "
        f"{share(known[waiting]['wait'])} of its time."
    )


def shares_of(node: NodeLog) -> dict[str, float] | None:
    spent = {activity: node.total(f"{activity}_s") for activity in ACTIVITIES}
    total = sum(spent.values())
    return {activity: s / total for activity, s in spent.items()} if total > 0 else None


def draw_pairs(figure: Figure, facts: Facts, what: Literal["merges", "rounds"]) -> None:
    from matplotlib import colormaps

    axes = figure.subplots()
    names, merges = list(facts.run.nodes), pairs_of(facts.run, what)
    if not merges.any():
        nothing(axes, _unmerged(facts))
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
    titles = ("merged node", "merging node") if what == "merges" else ("node", "node")
    label(axes, *titles, grid="")
    name_rows(axes, names)
    step = -(-len(names) // MOST_LABELLED)
    columns = range(0, len(names), step)
    axes.set_xticks(columns, [short(names[c]) for c in columns])
    is_long = max(map(len, names)) * len(columns) > 40
    axes.tick_params(axis="x", length=0, rotation=90 if is_long else 0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(what, color=FAINT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=FAINT, length=3)


def _alt_of_pairs(facts: Facts, what: Literal["merges", "rounds"]) -> str:
    merges = pairs_of(facts.run, what)
    if not merges.any():
        return _unmerged(facts)
    pairs = int((merges > 0).sum())
    row, column = np.unravel_index(int(merges.argmax()), merges.shape)
    listed = list(facts.nodes)
    if what == "rounds":
        return (
            f"Rounds of {plural(pairs // 2, 'pair')} of nodes; most often, {int(merges.max())} "
            f"times, {listed[row]} and {listed[column]} were in sync."
        )
    return (
        f"{plural(int(merges.sum()), 'merge')} in {plural(pairs, 'pair')}; most often, "
        f"{int(merges.max())} times, {listed[row]} has merged {listed[column]}."
    )


def pairs_of(run: Run, what: Literal["merges", "rounds"]) -> Floats:
    """Return what each node has counted of each other, shape `(nodes, nodes)`."""
    names = list(run.nodes)
    position = {name: index for index, name in enumerate(names)}
    found = np.zeros((len(names), len(names)))
    for name, node in run.nodes.items():
        for other, exchanged in node.exchanged.items():
            if other in position:
                found[position[name], position[other]] += getattr(exchanged, what)
    return found


def draw_staleness(figure: Figure, facts: Facts) -> None:
    """Draw how many updates what was merged lay behind the node that merged it."""
    axes = figure.subplots()
    bins = staleness_of(facts.run)
    if bins is None or not sum(bins.counts):
        nothing(axes, _unmerged(facts))
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


def _alt_of_staleness(facts: Facts) -> str:
    bins = staleness_of(facts.run)
    if bins is None or not sum(bins.counts):
        return _unmerged(facts)
    total = sum(bins.counts)
    seen = list(accumulate(bins.counts))
    bound = (*bins.bounds, math.inf)[next(i for i, s in enumerate(seen) if 2 * s >= total)]
    half = f"at most {bound:g}" if math.isfinite(bound) else f"more than {bins.bounds[-1]:g}"
    return f"Histogram of {total:,} merges: half of them were {half} updates behind."


def staleness_of(run: Run) -> HistogramReport | None:
    """Return how stale what all nodes have merged was; `None`: no node tells."""
    told = [node.staleness for node in run.nodes.values() if node.staleness is not None]
    if not told:
        return None
    alike = [bins.counts for bins in told if bins.bounds == told[0].bounds]
    return HistogramReport(
        told[0].bounds, tuple(sum(counts) for counts in zip(*alike, strict=True))
    )


def _bin_names(bounds: Sequence[float]) -> list[str]:
    return [*(f"{bound:g}" for bound in bounds), "more" if bounds else "all"]


def _percent(part: float) -> str:
    if part == 0:
        return ""
    return f"{100 * part:.0f} %" if part >= 0.01 else "<1 %"


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


def _alt_of_bytes(facts: Facts) -> str:
    totals = [traffic_of(node.log) for node in facts.nodes.values()]
    parts = [f"{size(sum(t[kind] for t in totals))} {kind}" for kind in totals[0]]
    return f"Bytes of each node; in all {names(parts)}."


def traffic_of(node: NodeLog) -> dict[str, float]:
    return {kind: node.total(f"{kind}_bytes") for kind, _ in _TRAFFIC}


@dataclass(frozen=True)
class Mark:
    marker: str  # of matplotlib
    colour: str  # in light
    text: str  # in the legend


MARKS = {
    "joined": Mark("^", PALETTE[2], "joined"),
    "finished": Mark("v", PALETTE[2], "finished"),
    "left": Mark("v", PALETTE[7], "left"),
    "checkpoint": Mark("|", PALETTE[0], "checkpoint"),
    "in_sync": Mark(">", PALETTE[2], "in sync"),
    "out_of_sync": Mark("<", PALETTE[4], "out of sync"),
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
    legend(figure, handles, 2)  # its labels are long


def _alt_of_events(facts: Facts) -> str:
    counts: dict[str, int] = {}
    for event, _ in moments(facts.run):
        counts[event.kind] = counts.get(event.kind, 0) + 1
    parts = [f"{count} times {kind.replace('_', ' ')}" for kind, count in counts.items()]
    told = f"Marks: {names(parts, 20)}." if parts else "Nothing happened to any node."
    return f"The life of each node as a line. {told}"


def _marks(facts: Facts) -> dict[str, list[tuple[float, str]]]:
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


def moments(run: Run, most: int | None = None) -> list[tuple[RunEvent, list[str]]]:
    """Return what happened, each with all who have noticed it at about the same time.

    Of more than `most` the rarest kinds come first; the order is that of time.
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


def _scatter(axes: Axes, places: list[tuple[float, int]], mark: Mark) -> None:
    x, y = zip(*places, strict=True)
    is_line = mark.marker in "x|_1"
    edge: Any = {} if is_line else {"edgecolors": LINE, "linewidths": 0.5}
    axes.scatter(x, y, marker=mark.marker, color=mark.colour, s=34, zorder=3, **edge)


def _handle(mark: Mark) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=mark.colour, marker=mark.marker, linestyle="none", label=mark.text)


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
