"""Draw a comparison of the test errors and the traffic of all algorithms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison.outcome import GOAL, Outcome
from comparison.variants import ALONE, SYNCHRONOUS, Variant
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, and then darker colors. Rows next to each other differ most.
_PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#7B3294", "#8C510A", "#01665E", "#C51B7D",
)  # fmt: skip
_BASELINES = {ALONE: ("#999999", (0, (1, 1.5))), SYNCHRONOUS: ("#111111", (0, (5, 2)))}
_INK, _FAINT = "#222222", "#666666"
_MIN_ERROR = 0.02

Outcomes = Mapping[Variant, Outcome]


def draw_chart(outcomes: Outcomes, nodes: int, path: Path, shards: str = "shared") -> None:
    """Write a PNG file with the curves and the traffic of all variants.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(13, 6.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.15, 1)})
    figure.subplots_adjust(left=0.07, right=0.985, top=0.8, bottom=0.11, wspace=0.5)
    styles = _styles(outcomes)
    _draw_curves(left, outcomes, styles)
    _draw_bars(right, outcomes, styles)
    _draw_titles(figure, nodes, shards)
    figure.savefig(path, format="png")


def _styles(outcomes: Outcomes) -> dict[Variant, dict[str, Any]]:
    colours = iter(_PALETTE * (1 + len(outcomes) // len(_PALETTE)))
    styles: dict[Variant, dict[str, Any]] = {}
    for variant in outcomes:
        if variant.name in _BASELINES:
            colour, dashes = _BASELINES[variant.name]
            styles[variant] = {"color": colour, "linestyle": dashes, "linewidth": 2.0, "zorder": 4}
        else:
            styles[variant] = {"color": next(colours), "linewidth": 1.7, "alpha": 0.9}
    return styles


def _draw_curves(
    axes: Axes, outcomes: Outcomes, styles: Mapping[Variant, Mapping[str, Any]]
) -> None:
    for variant, outcome in outcomes.items():
        steps = outcome.steps.clip(min=1)
        error = (1.0 - outcome.accuracy).clip(min=_MIN_ERROR)
        axes.plot(steps, error, **styles[variant])
    last = int(next(iter(outcomes.values())).steps[-1])
    axes.axhline(1.0 - GOAL, color=_FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        f"{100 * GOAL:g} % correct", (0, 1.0 - GOAL), xycoords=("axes fraction", "data"),
        xytext=(5, -12), textcoords="offset points", color=_FAINT, fontsize=9,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(2, max(last, 3))
    axes.xaxis.set_major_locator(_ticks(last))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(_no_ticks())
    axes.set_yscale("log")
    axes.set_ylim(_MIN_ERROR, 1.0)
    axes.set_yticks([0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0])
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.yaxis.set_minor_locator(_no_ticks())
    _label(axes, "Test error after each step", "training steps of each node (log scale)")
    axes.set_ylabel("test error, mean of the nodes (log scale)", color=_INK)
    axes.grid(color="#e3e3e3", linewidth=0.8)


def _ticks(last: int) -> Any:
    from matplotlib.ticker import FixedLocator

    marks = [mark for power in (1, 10, 100, 1000, 10_000) for mark in (power, 2 * power, 5 * power)]
    return FixedLocator([mark for mark in marks if mark <= last])


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _draw_bars(axes: Axes, outcomes: Outcomes, styles: Mapping[Variant, Mapping[str, Any]]) -> None:
    places = range(len(outcomes))
    sent = [outcome.mb_sent for outcome in outcomes.values()]
    most = max(*sent, 0.1)
    for place, (variant, outcome) in zip(places, outcomes.items(), strict=True):
        colour = styles[variant]["color"]
        axes.barh(place, outcome.mb_sent, height=0.62, color=colour, alpha=0.9)
        text = f"{outcome.mb_sent:.1f} MB  ·  {_steps(outcome)}  ·  {outcome.mean:.3f}"
        axes.text(
            outcome.mb_sent + 0.015 * most, place, text, va="center", color=_INK, fontsize=9.5
        )
    axes.set_yticks(list(places), [variant.label for variant in outcomes])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * most)
    goal = f"{100 * GOAL:g} %"
    title = f"Sent by each node  ·  steps to {goal}  ·  final accuracy"
    _label(axes, title, "10⁶ bytes sent by a node")
    for label, variant in zip(axes.get_yticklabels(), outcomes, strict=True):
        label.set_color(styles[variant]["color"])
        label.set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="#e3e3e3", linewidth=0.8)


def _steps(outcome: Outcome) -> str:
    return "never" if math.isinf(outcome.steps_to_goal) else f"{outcome.steps_to_goal:g} steps"


def _label(axes: Axes, title: str, x: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10)
    axes.set_xlabel(x, color=_INK)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_FAINT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#aaaaaa")


def _draw_titles(figure: Figure, nodes: int, shards: str) -> None:
    figure.text(
        0.07, 0.93, f"{nodes} processes learn handwritten digits together",
        fontsize=17, fontweight="bold", color=_INK,
    )  # fmt: skip
    figure.text(
        0.07, 0.882,
        f"All algorithms have the same model, {shards} data, learning rate and number of steps. "
        "A curve has the color of the name on the right.",
        fontsize=11, color=_FAINT,
    )  # fmt: skip
