"""Pictures by node: where its seconds went, its bytes, and how stale was what it merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_data import Bins, NodeLog, Run
from dpwa.report.style import FAINT, INK, MOST_LABELLED, PALETTE, label, legend, nothing, short
from dpwa.report.wording import share, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def staleness_of(run: Run) -> Bins | None:
    """Return how stale what all nodes have merged was; `None`: no node tells."""
    told = [node.staleness for node in run.nodes.values() if node.staleness is not None]
    if not told:
        return None
    alike = [bins.counts for bins in told if bins.bounds == told[0].bounds]
    return Bins(told[0].bounds, tuple(sum(counts) for counts in zip(*alike, strict=True)))


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
