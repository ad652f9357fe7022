"""What came out: figures for machines; a table, a conclusion and a picture for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpwa.demo.progress import NARROW_COLUMNS
from dpwa.demo.records import History, Phase, Record
from dpwa.files import written
from dpwa.types import StrictModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with every common kind of colour blindness; yellow is left out
# because thin yellow lines vanish on white.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_STYLES: dict[Phase, dict[str, Any]] = {
    "alone": {"linestyle": (0, (4, 2)), "linewidth": 1.2, "alpha": 0.55, "zorder": 2},
    "gossip": {"linestyle": "-", "linewidth": 1.8, "alpha": 0.95, "zorder": 3},
}
Value = Callable[[Record], float | None]
_INK, _FAINT = "#222222", "#666666"
_FINISH_WIDTH = 0.07  # of the training: `finish` has no steps, so it is drawn as a phase beside it


class NodeResult(StrictModel):
    """How one node ended; accuracies are shares of the test set, 0 to 1."""

    name: str
    steps: int
    merges: int
    accuracy: float
    alone_accuracy: float


class DemoResult(StrictModel):
    """What `dpwa demo --json` prints."""

    nodes: tuple[NodeResult, ...]  # one entry per node that ended well
    mean_accuracy: float  # test accuracy with gossip
    mean_alone_accuracy: float  # test accuracy of the same training alone
    consensus_distance: float  # root mean square of the distances from the mean parameters
    seconds: float  # duration of the whole demo

    def gossip_won(self) -> bool:
        return self.mean_accuracy > self.mean_alone_accuracy


def load_weights(path: Path) -> NDArray[np.float64]:
    with np.load(path, allow_pickle=False) as arrays:
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays)], dtype=np.float64)


def consensus_distance(vectors: Sequence[NDArray[np.float64]]) -> float:
    """Return sqrt(1/N * sum_i |x_i - mean|^2) of N parameter vectors of the same length."""
    stacked = np.stack(vectors)
    deviations = stacked - stacked.mean(axis=0)
    return float(np.sqrt(np.square(deviations).sum(axis=1).mean()))


def summarise(history: History, names: Sequence[str], out_dir: Path, seconds: float) -> DemoResult:
    """Return the result of the nodes that ended well, at least one."""
    nodes = tuple(_node_result(history, name) for name in names)
    return DemoResult(
        nodes=nodes,
        mean_accuracy=fmean(node.accuracy for node in nodes),
        mean_alone_accuracy=fmean(node.alone_accuracy for node in nodes),
        consensus_distance=consensus_distance(
            [load_weights(out_dir / f"{name}.npz") for name in names]
        ),
        seconds=round(seconds, 2),
    )


def conclusion(result: DemoResult) -> str:
    gain = result.mean_accuracy - result.mean_alone_accuracy
    figures = f"{result.mean_accuracy:.3f} with gossip, {result.mean_alone_accuracy:.3f} alone"
    if result.gossip_won():
        return f"Gossip won: mean test accuracy {figures} (+{gain:.3f})."
    return f"Gossip did not win: mean test accuracy {figures} ({gain:+.3f})."


def show_report(
    result: DemoResult, paths: Sequence[tuple[str, str]], *, is_result: bool = True
) -> None:
    """Print the table, the consensus distance, the files written, and the conclusion.

    `paths` are pairs of what a file is and where it lies. Without `is_result` all goes to standard
    error, beside JSON.
    """
    from rich.console import Console

    console = Console(stderr=not is_result, highlight=False)
    is_narrow = console.width < NARROW_COLUMNS
    console.print(_table(result, is_narrow=is_narrow))
    console.print(
        f"Consensus distance {result.consensus_distance:.2g} "
        "(root mean square distance from the mean parameters)",
        soft_wrap=True,
    )
    counted = "" if is_narrow else "; merges are those before"
    text = f"After its last step a node averaged with all others (finish){counted}."
    console.print(text, soft_wrap=True)
    for title, path in [*paths, ("Time", f"{result.seconds:.0f} s")]:
        console.print(f"{title:<16} {path}", markup=False, soft_wrap=True)
    style = "bold green" if result.gossip_won() else "bold red"
    console.print(conclusion(result), style=style, soft_wrap=True)


def print_json(result: DemoResult) -> None:
    sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    sys.stdout.flush()


def _node_result(history: History, name: str) -> NodeResult:
    end = history.of(name, "mixing")[-1]
    alone = history.of(name, "alone")[-1]
    return NodeResult(
        name=name,
        steps=end.step,
        merges=end.merges,
        accuracy=end.accuracy,
        alone_accuracy=alone.accuracy,
    )


def _table(result: DemoResult, *, is_narrow: bool) -> Any:
    from rich.table import Table

    name_width = max(len(node.name) for node in result.nodes)
    means = (f"{result.mean_accuracy:.3f}", f"{result.mean_alone_accuracy:.3f}")
    table = Table(title="Test accuracy of each node", title_justify="left", show_footer=True)
    table.add_column("node", footer="mean", no_wrap=True, min_width=name_width)
    table.add_column("steps", justify="right")
    if not is_narrow:
        table.add_column("merges", justify="right")
    table.add_column("gossip" if is_narrow else "with gossip", footer=means[0], justify="right")
    table.add_column("alone", footer=means[1], justify="right")
    for node in result.nodes:
        counts = (node.steps,) if is_narrow else (node.steps, node.merges)
        accuracies = (f"{node.accuracy:.3f}", f"{node.alone_accuracy:.3f}")
        table.add_row(node.name, *map(str, counts), *accuracies)
    return table


def draw_chart(history: History, names: tuple[str, ...], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.2), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.065, right=0.935, top=0.79, bottom=0.175, wspace=0.32)
    _draw_accuracy(left, history, names)
    _draw_loss(right, history, names)
    _draw_titles(figure, len(names))
    _draw_legend(figure, names)
    with written(path) as out:
        figure.savefig(out, format="png")


def node_colour(position: int, count: int) -> Any:
    """Return a colour of the palette, or of cividis when there are many nodes."""
    if count <= len(_PALETTE):
        return _PALETTE[position]
    from matplotlib import colormaps

    return colormaps["cividis"](0.9 * position / (count - 1))


def _draw_accuracy(axes: Axes, history: History, names: tuple[str, ...]) -> None:
    _draw_curves(axes, history, names, lambda record: record.accuracy)
    _draw_finish(axes, history, names)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    _label(axes, "Accuracy on all ten digits", "test accuracy (share correct)")
    _annotate_means(axes, history, names, lambda record: record.accuracy)


def _draw_loss(axes: Axes, history: History, names: tuple[str, ...]) -> None:
    from matplotlib.ticker import NullLocator

    _draw_curves(axes, history, names, lambda record: record.loss)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    _label(axes, "Loss on each node's own shard", "training cross-entropy (nats, log scale)")
    _annotate_means(axes, history, names, lambda record: record.loss)


def _annotate_means(axes: Axes, history: History, names: tuple[str, ...], value: Value) -> None:
    for phase in _STYLES:
        mean = fmean(_points(history, name, phase, value)[-1][1] for name in names)
        axes.annotate(
            f"{phase}\n{mean:.2g}" if axes.get_yscale() == "log" else f"{phase}\n{mean:.3f}",
            xy=(1, mean),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=_INK,
            fontsize=10,
            fontweight="bold" if phase == "gossip" else "normal",
            annotation_clip=False,
        )


def _draw_curves(axes: Axes, history: History, names: tuple[str, ...], value: Value) -> None:
    for phase, style in _STYLES.items():
        for position, name in enumerate(names):
            points = _points(history, name, phase, value)
            colour = node_colour(position, len(names))
            axes.plot(*zip(*points, strict=True), color=colour, **style)


def _draw_finish(axes: Axes, history: History, names: tuple[str, ...]) -> None:
    """Shade the phase after the last step, in which nodes average and train no more."""
    last = max(record.step for name in names for record in history.of(name, "gossip"))
    end = last * (1 + _FINISH_WIDTH)
    axes.axvspan(last, end, color="#e4e4e4", linewidth=0, zorder=0)
    axes.text(
        (last + end) / 2,
        0.02,
        "finish",
        transform=axes.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="bottom",
        color=_FAINT,
        fontsize=10,
    )


def _points(history: History, name: str, phase: Phase, value: Value) -> list[tuple[float, float]]:
    """Return steps and values of a curve; that of gossip ends with what `finish` has made of it."""
    points = [(float(record.step), value(record)) for record in history.of(name, phase)]
    if phase == "gossip":
        end = history.of(name, "mixing")
        points += [(record.step * (1 + _FINISH_WIDTH), value(record)) for record in end]
    return [(step, height) for step, height in points if height is not None]


def _label(axes: Axes, title: str, height: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10)
    axes.set_xlabel("training step (batches of one node)", color=_INK)
    axes.set_ylabel(height, color=_INK)
    axes.margins(x=0)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_FAINT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#aaaaaa")


def _draw_titles(figure: Figure, count: int) -> None:
    figure.text(
        0.065,
        0.93,
        f"{count} nodes, each with its own few digits, learn all ten by gossip",
        fontsize=17,
        fontweight="bold",
        color=_INK,
    )
    figure.text(
        0.065,
        0.885,
        "Alone a node fits its own shard and fails on the rest; "
        "no example ever leaves its node, only parameters do.",
        fontsize=11,
        color=_FAINT,
    )


def _draw_legend(figure: Figure, names: tuple[str, ...]) -> None:
    from matplotlib.lines import Line2D

    texts = {"gossip": "with gossip", "alone": "same training, alone"}
    handles = [
        Line2D([], [], color=_INK, label=text, **_STYLES[phase])  # type: ignore[index]
        for phase, text in texts.items()
    ]
    positions = range(len(names)) if len(names) <= 10 else (0, len(names) - 1)
    handles += [
        Line2D([], [], color=node_colour(position, len(names)), linewidth=3, label=names[position])
        for position in positions
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncol=len(handles),
        columnspacing=1.5,
        frameon=False,
        fontsize=10,
        labelcolor=_INK,
        bbox_to_anchor=(0.5, 0.02),
    )
