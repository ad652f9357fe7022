"""The results of the demo as figures and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from dpwa.demo.records import History, Phase, Record
from dpwa.report.style import (
    FAINT,
    INK,
    Looks,
    drawing,
    label,
    legend,
    line_handles,
    looks_of,
    new_figure,
    save_png,
    scale,
)
from dpwa.types import StrictModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES: dict[Phase, dict[str, Any]] = {
    "alone": {"linestyle": (0, (4, 2)), "linewidth": 1.0, "alpha": 0.55},
    "gossip": {"linestyle": "-", "linewidth": 1.6},
}
_TITLES: dict[Phase, str] = {"gossip": "with gossip", "alone": "same training, alone"}
_FINISH_WIDTH = 0.05  # share of the axis for the result of `finish`, which has no steps
Value = Callable[[Record], float | None]


class NodeResult(StrictModel):
    """The result of one node. Accuracies are shares of the test set, from 0 to 1."""

    name: str
    steps: int
    merges: int
    accuracy: float
    alone_accuracy: float


class DemoResult(StrictModel):
    """The output of `dpwa demo --json`."""

    nodes: tuple[NodeResult, ...]  # one entry per node that ended well
    mean_accuracy: float  # test accuracy with gossip
    mean_alone_accuracy: float  # test accuracy of the same training alone
    consensus_distance: float | None  # the largest after `finish`, or `None` if a node was alone
    seconds: float  # duration of the whole demo

    def gossip_won(self) -> bool:
        return self.mean_accuracy > self.mean_alone_accuracy


def summarise(history: History, names: Sequence[str], seconds: float) -> DemoResult:
    """Return the demo's result from the successful nodes `names`, at least one node."""
    nodes, distances = [], []
    for name in names:
        alone, end = history.records_of(name, "alone")[-1], history.records_of(name, "finish")[-1]
        distances.append(end.consensus_distance)
        nodes.append(
            NodeResult(
                name=name,
                steps=end.step,
                merges=end.merges,
                accuracy=end.accuracy,
                alone_accuracy=alone.accuracy,
            )
        )
    return DemoResult(
        nodes=tuple(nodes),
        mean_accuracy=fmean(node.accuracy for node in nodes),
        mean_alone_accuracy=fmean(node.alone_accuracy for node in nodes),
        consensus_distance=max((d for d in distances if d is not None), default=None),
        seconds=round(seconds, 2),
    )


def draw_chart(history: History, names: Sequence[str], path: Path) -> None:
    """Draw the accuracy and loss of each node over its steps."""
    from matplotlib.lines import Line2D

    order = sorted(names, key=lambda name: history.records_of(name, "alone")[-1].accuracy)
    looks = looks_of(names, {order[-1]: "best alone", order[0]: "worst alone"})
    with drawing():
        figure = new_figure(4.2, 9.0)
        left, right = figure.subplots(1, 2)
        _draw_curves(left, history, looks, lambda record: record.accuracy)
        left.set_ylim(0, 1)
        last = max(record.step for name in names for record in history.records_of(name, "finish"))
        left.axvline(last, color=FAINT, linestyle=":", linewidth=1)
        label(
            left, "training step of a node (after the line: finish)", "accuracy on all ten digits"
        )
        _draw_curves(right, history, looks, lambda record: record.loss)
        scale(right, np.concatenate([line.get_ydata() for line in right.lines]))
        label(right, "training step of a node", "loss on its own digits (nats)")
        figure.suptitle(
            f"{len(names)} nodes, each with its own few digits, learn all ten by gossip.\n"
            "Examples stay on their node. Only parameters are sent.",
            color=INK,
        )
        handles = [Line2D([], [], color=INK, label=_TITLES[p], **_STYLES[p]) for p in _TITLES]
        legend(figure, handles + line_handles(looks, names), 10)
        save_png(figure, path)


def _draw_curves(axes: Axes, history: History, looks: Looks, value: Value) -> None:
    for phase, style in _STYLES.items():
        curves = {name: _points(history, name, phase, value) for name in looks}
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), **{**looks[name].line, **style})
        mean = fmean(points[-1][1] for points in curves.values())
        axes.annotate(
            f"{phase}\n{mean:.3g}",
            xy=(1, mean),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            annotation_clip=False,
        )
    axes.margins(x=0)
    axes.set_xlim(left=0)


def _points(history: History, name: str, phase: Phase, value: Value) -> list[tuple[float, float]]:
    """Return a curve's points (step, value). A gossip curve ends with the value after `finish`."""
    points = [(float(record.step), value(record)) for record in history.records_of(name, phase)]
    if phase == "gossip":
        end = history.records_of(name, "finish")
        points += [(record.step * (1 + _FINISH_WIDTH), value(record)) for record in end]
    return [(step, height) for step, height in points if height is not None]
