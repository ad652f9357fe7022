"""A topology as a drawing: nodes on a circle, or in rows and columns, and the edges between."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpwa.cli.topology_report import Description, Neighbours, title_of
from dpwa.errors import UserError
from dpwa.policy.topology import LatticeOptions, StarOptions, columns_of
from dpwa.types import StrictModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
MOST_DRAWN_NODES = 256
RADIUS = 3.1  # inches, as all below
LARGEST_NODE = 0.62

_LONGEST_LABEL = 14
_LEAST_FONT = 5.5  # points; smaller labels do not stay inside their nodes
_POINTS_PER_INCH = 72
_PLANE = RADIUS + 0.65  # half the side of the square that is drawn in
_MARGIN, _NOTES, _TITLES = 0.1, 0.65, 0.95
_WIDTH, _HEIGHT = 2 * (_PLANE + _MARGIN), 2 * _PLANE + _NOTES + _TITLES

# Okabe and Ito's palette, as in the chart of the demo; one colour a round.
_ROUND_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INK, _FAINT, _LINE, _FILL = "#222222", "#666666", "#5B7A99", "#E6F0F8"

Point = NDArray[np.float64]  # x and y, in inches
Points = NDArray[np.float64]  # shape (any, 2)
Colour = tuple[str, float]  # its name and opacity


def require_drawable(path: Path, nodes: int) -> None:
    """Make sure that a drawing is possible, before anything takes its time."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"--draw: expected a file that ends in .svg or .png (got {path}) [DPWA-E028]"
        )
    if nodes > MOST_DRAWN_NODES:
        raise UserError(
            f"--draw: expected at most {MOST_DRAWN_NODES} nodes (got {nodes}) [DPWA-E028]"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            "--draw needs matplotlib; install it with: "
            'pip install -c constraints.txt ".[plot]" in a checkout [DPWA-E028]'
        )


def draw_topology(description: Description, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left, bottom = _MARGIN / _WIDTH, _NOTES / _HEIGHT
    axes = figure.add_axes((left, bottom, 2 * _PLANE / _WIDTH, 2 * _PLANE / _HEIGHT))
    axes.set(xlim=(-_PLANE, _PLANE), ylim=(-_PLANE, _PLANE), aspect="equal")
    axes.axis("off")
    layout = layout_of(description.options, len(description.names))
    _draw_edges(axes, description, layout)
    _draw_nodes(axes, description, layout)
    _draw_texts(figure, description, layout)
    try:
        figure.savefig(path, format=path.suffix.lower().removeprefix("."))
    except OSError as error:
        raise UserError(
            f"--draw: {path}: cannot be written ({error.strerror}) [DPWA-E028]"
        ) from None


@dataclass(frozen=True)
class GraphLayout:
    points: Points  # y points upwards
    spacing: float  # distance of the closest two
    columns: int = 0  # nodes in a row; 0 if they do not stand in rows

    @property
    def node_inches(self) -> float:
        return min(LARGEST_NODE, 0.62 * self.spacing)

    def wraps(self, one: int, two: int) -> bool:
        """Tell whether an edge goes from one end of a row or column to the other."""
        distance = np.abs(self.points[one] - self.points[two]).sum()
        return self.columns > 0 and bool(distance > 1.5 * self.spacing)


def layout_of(options: StrictModel, nodes: int) -> GraphLayout:
    """Put lattices into rows, the middle of a star into the middle, and all others on a circle."""
    if isinstance(options, LatticeOptions):
        return _rows(columns_of(options.columns, nodes), nodes)
    if isinstance(options, StarOptions) and nodes > 2:
        others = _circle(nodes - 1)
        points = np.insert(others.points, options.center, 0.0, axis=0)
        return GraphLayout(points, others.spacing)
    return _circle(nodes)


def _circle(nodes: int) -> GraphLayout:
    """The first node stands at the top, the others follow clockwise."""
    if nodes == 1:
        return GraphLayout(np.zeros((1, 2)), RADIUS)
    angles = 2 * np.pi * np.arange(nodes) / nodes
    points = RADIUS * np.column_stack([np.sin(angles), np.cos(angles)])
    return GraphLayout(points, 2 * RADIUS * math.sin(math.pi / nodes))


def _rows(columns: int, nodes: int) -> GraphLayout:
    """The first node stands at the upper left, the others follow as in a text."""
    rows = math.ceil(nodes / columns)
    spacing = min(2 * RADIUS / max(columns - 1, rows - 1, 2), 1.9)
    row, column = np.divmod(np.arange(nodes), columns)
    points = spacing * np.column_stack([column - (columns - 1) / 2, (rows - 1) / 2 - row])
    return GraphLayout(points, spacing, columns)


def _draw_edges(axes: Axes, description: Description, layout: GraphLayout) -> None:
    several = len(description.rounds) > 1
    for position, neighbours in enumerate(description.rounds.values()):
        lines, arrows = list(_mutual(neighbours)), list(_one_way(neighbours))
        name = _ROUND_COLOURS[position % len(_ROUND_COLOURS)] if several else _LINE
        colour = (name, _opacity(len(lines) + len(arrows), layout))
        _draw_lines(axes, lines, layout, colour)
        _draw_arrows(axes, arrows, layout, colour)


def _draw_lines(
    axes: Axes, edges: Sequence[tuple[int, int]], layout: GraphLayout, colour: Colour
) -> None:
    from matplotlib.collections import LineCollection

    points = layout.points
    straight = [(points[i], points[j]) for i, j in edges if not layout.wraps(i, j)]
    stubs = [stub for i, j in edges if layout.wraps(i, j) for stub in _stubs(layout, i, j)]
    axes.add_collection(LineCollection(straight, colors=colour, linewidths=1.4))
    axes.add_collection(
        LineCollection(stubs, colors=colour, linewidths=1.4, linestyles=(0, (2, 2)))
    )


def _stubs(layout: GraphLayout, one: int, two: int) -> Iterator[tuple[Point, Point]]:
    """Yield both ends of an edge that leaves the lattice on one side and enters on the other."""
    between = layout.points[two] - layout.points[one]
    inches = layout.node_inches / 2 + 0.3 * min(1.0, layout.spacing)
    step = inches * between / np.abs(between).sum()
    yield layout.points[one], layout.points[one] - step
    yield layout.points[two], layout.points[two] + step


def _draw_arrows(
    axes: Axes, edges: Sequence[tuple[int, int]], layout: GraphLayout, colour: Colour
) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    arrows = [_arrow(layout, puller, source) for puller, source in edges]
    curves, heads = [curve for curve, _ in arrows], [head for _, head in arrows]
    axes.add_collection(LineCollection(curves, colors=colour, linewidths=1.2))
    axes.add_collection(PolyCollection(heads, facecolors=colour, edgecolors="none"))


def _arrow(layout: GraphLayout, puller: int, source: int) -> tuple[Points, Points]:
    """Return the curve and the triangle of an arrow, bent so that two of them never coincide."""
    start, end = layout.points[puller], layout.points[source]
    across = np.array([end[1] - start[1], start[0] - end[0]])
    control = (start + end) / 2 + 0.1 * across
    t = np.linspace(0, 1, 257)[:, None]
    curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    gap = 0.55 * layout.node_inches
    free = [np.hypot(*(curve - node).T) >= gap for node in (start, end)]
    curve = curve[free[0] & free[1]]
    size = min(0.05 + 0.12 * layout.node_inches, 0.4 * layout.node_inches)
    along = curve[-1] - curve[-8]
    along = size * along / np.hypot(*along)
    side = 0.4 * np.array([-along[1], along[0]])
    foot = curve[-1] - along
    is_before = np.hypot(*(curve - curve[-1]).T) >= 0.7 * size
    return curve[is_before], np.array([curve[-1], foot + side, foot - side])


def _draw_nodes(axes: Axes, description: Description, layout: GraphLayout) -> None:
    from matplotlib.patches import Circle

    labels = [_shortened(name) for name in description.names]
    font = _font_inside(labels, layout)
    for point, label, fill in zip(layout.points, labels, _fills(description), strict=True):
        circle = Circle(
            tuple(point), layout.node_inches / 2, facecolor=fill, edgecolor=_INK, linewidth=1.0
        )
        axes.add_patch(circle).set_zorder(3)
        if font >= _LEAST_FONT:
            _write(axes, point, label, font)
        else:
            _write_beside(axes, point, label, layout)


def _write(axes: Axes, point: Point, label: str, font: float) -> None:
    x, y = point
    axes.text(x, y, label, ha="center", va="center_baseline", fontsize=font, color=_INK, zorder=4)


def _write_beside(axes: Axes, point: Point, label: str, layout: GraphLayout) -> None:
    """Write outside of the circle, away from its middle; in a lattice, below the node."""
    font = min(10.0, max(3.5, 0.62 * layout.spacing * _POINTS_PER_INCH))
    gap = layout.node_inches / 2 + 0.05
    if layout.columns:
        axes.text(
            point[0],
            point[1] - gap,
            label,
            ha="center",
            va="top",
            fontsize=min(font, 6.0),
            color=_INK,
        )
        return
    distance = float(np.hypot(*point))
    outward = point / distance if distance else np.array([0.0, 1.0])
    angle = float(np.degrees(np.arctan2(outward[1], outward[0])))
    flipped = abs(angle) > 90
    x, y = point + gap * outward
    axes.text(
        x,
        y,
        label,
        rotation=angle + 180 if flipped else angle,
        rotation_mode="anchor",
        ha="right" if flipped else "left",
        va="center",
        fontsize=font,
        color=_INK,
    )


def _draw_texts(figure: Figure, description: Description, layout: GraphLayout) -> None:
    left = 0.045
    title = title_of(description)
    figure.text(left, 1 - 0.48 / _HEIGHT, title, fontsize=17, fontweight="bold", color=_INK)
    figure.text(left, 1 - 0.78 / _HEIGHT, _subtitle(description), fontsize=11, color=_FAINT)
    notes = "\n".join(_notes(description, layout))
    figure.text(
        left, 0.15 / _HEIGHT, notes, fontsize=10, color=_FAINT, va="bottom", linespacing=1.5
    )
    if len(description.rounds) > 1:
        _draw_legend(figure, list(description.rounds))


def _draw_legend(figure: Figure, rounds: Sequence[int]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=_ROUND_COLOURS[position % len(_ROUND_COLOURS)], label=f"round {number}"
        )
        for position, number in enumerate(rounds)
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(0.975, 0.905),
        frameon=False,
        fontsize=10,
        labelcolor=_INK,
    )


def _subtitle(description: Description) -> str:
    figures = description.figures
    gap = f"spectral gap {figures.spectral_gap:.3g} at factor {figures.factor:g}"
    hops = "not connected" if figures.diameter is None else f"diameter {figures.diameter}"
    rounds = "" if figures.rounds is None else f" · {figures.rounds} rounds to 1/1000"
    return f"{gap} · {hops}{rounds}"


def _notes(description: Description, layout: GraphLayout) -> Iterator[str]:
    names, weights, extremes = (
        description.names,
        description.figures.weights,
        description.extremes(),
    )
    if weights is not None and extremes is not None:
        low, high = extremes
        yield (
            f"darker nodes count for more in what all agree on: {weights[low]:.3g} "
            f"({_shortened(names[low])}) to {weights[high]:.3g} ({_shortened(names[high])})"
        )
    if any(True for neighbours in description.rounds.values() for _ in _one_way(neighbours)):
        yield "an arrow points from a node to the one that it pulls from"
    edges = [edge for neighbours in description.rounds.values() for edge in _mutual(neighbours)]
    if any(layout.wraps(*edge) for edge in edges):
        yield "dotted edges go on at the other end of the row or column"


def _mutual(neighbours: Neighbours) -> Iterator[tuple[int, int]]:
    for index, others in enumerate(neighbours):
        yield from (
            (index, other) for other in others if index < other and index in neighbours[other]
        )


def _one_way(neighbours: Neighbours) -> Iterator[tuple[int, int]]:
    for index, others in enumerate(neighbours):
        yield from ((index, other) for other in others if index not in neighbours[other])


def _fills(description: Description) -> list[object]:
    from matplotlib import colormaps

    weights = description.figures.weights
    if weights is None or description.extremes() is None:
        return [_FILL] * len(description.names)
    shares = weights / weights.max()
    return [colormaps["Blues"](0.08 + 0.47 * share) for share in shares]


def _font_inside(labels: Sequence[str], layout: GraphLayout) -> float:
    """Return the font size, in points, at which the longest label fits into a node."""
    longest = max(map(len, labels))
    return min(12.0, layout.node_inches * _POINTS_PER_INCH * 0.82 / (0.62 * max(longest, 2)))


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def _opacity(edges: int, layout: GraphLayout) -> float:
    """The more edges cross each other, the fainter is each of them."""
    return 0.9 if layout.columns else min(0.9, max(0.12, 60 / max(edges, 1)))
