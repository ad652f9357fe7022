"""Draw the pictures of the scaling study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpwa.report.style import (
    Looks,
    drawing,
    label,
    legend,
    line_handles,
    looks_of,
    new_figure,
    save_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 7.2, 3.4
POWERS = (10, 100, 1000, 10_000)
Rows = Sequence[Mapping[str, Any]]
Curves = Mapping[str, tuple[Rows, str]]  # for each name, the rows, and the key of the figure


def draw_training(rows: Rows, folder: Path) -> Path:
    names = list(dict.fromkeys(row["topology"] for row in rows))
    of = {name: [row for row in rows if row["topology"] == name] for name in names}
    times: Curves = {name: (of[name], "seconds_to_target") for name in names}
    loads: Curves = {name: (of[name], "busiest_by_mean") for name in names}
    panels = (
        ("simulated seconds to the target", times),
        ("snapshots served, busiest / mean", loads),
    )
    return _draw(panels, folder / "scaling-training.png")


def draw_membership(whole: Rows, alone: Rows, folder: Path) -> Path:
    traffic: Curves = {
        "steady": (whole, "bytes_per_s"),
        "steady, alone": (alone, "bytes_per_s"),
        "half lost": (whole, "bytes_per_s_after_loss"),
        "lost, alone": (alone, "bytes_per_s_after_loss"),
    }
    known: Curves = {
        "half lost": (whole, "dead_known_s"),
        "lost, alone": (alone, "dead_known_s"),
    }
    panels = (
        ("bytes/s of a node for membership", traffic),
        ("seconds until all dead are known", known),
    )
    return _draw(panels, folder / "scaling-membership.png")


def _draw(panels: Sequence[tuple[str, Curves]], path: Path) -> Path:
    names = list(dict.fromkeys(name for _, curves in panels for name in curves))
    looks = looks_of(names, {})
    with drawing():
        figure = new_figure(HEIGHT, WIDTH)
        for axes, (title, curves) in zip(figure.subplots(1, 2), panels, strict=True):
            _curves(axes, curves, looks)
            label(axes, "nodes", title)
        legend(figure, line_handles(looks, names), 4)
        save_png(figure, path)
    return path


def _curves(axes: Axes, curves: Curves, looks: Looks) -> None:
    for name, (rows, key) in curves.items():
        points = [(row["nodes"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **looks[name].line)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    powers = [power for power in POWERS if low <= power <= high]
    axes.set_xticks(powers, [f"{power:,}" for power in powers])
    axes.set_xticks([], minor=True)
    axes.margins(y=0.08)
    axes.set_ylim(bottom=0)
