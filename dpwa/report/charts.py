"""The pictures of a report: what each shows, and what it says to those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpwa.observe.rates import ACTIVITIES
from dpwa.report import bars, curves
from dpwa.report.facts import Facts
from dpwa.report.style import HEIGHT, Looks, drawing, looks_of, new_figure, save_png
from dpwa.report.wording import duration, names, number, plural, share, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import html
import io
import re
import xml.etree.ElementTree as ET

from dpwa.report.style import DARK, INK

_NAMESPACE = re.compile(r"^\{([^}]*)\}")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_DECIMALS = re.compile(r"(-?\d+\.\d)\d+")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")
_VARIABLES = {colour: f"var(--c{colour[1:]})" for colour in DARK}
_FONT = re.compile(r"font: ([\d.]+px) [^;]*")


def style_sheet() -> str:
    """Return the colours of all pictures as variables, for light and dark pages."""
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in DARK)
    dark = "".join(f"--c{colour[1:]}:{other};" for colour, other in DARK.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """Return a figure as an element of HTML; no other picture of the page may have its `name`."""
    data = io.BytesIO()
    figure.savefig(data, format="svg", facecolor="none", metadata={"Date": None})
    root = ET.fromstring(data.getvalue())  # noqa: S314  (of matplotlib, and just written)
    _tidy(root, name)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "stroke-linejoin": "round",
        "role": "img",
        "aria-label": alt,
    }
    return "".join(_written(root))


def _tidy(root: ET.Element, name: str) -> None:
    """Drop what a page does not need, and have all names begin with that of the picture."""
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("metadata", "title", "style"):
                parent.remove(child)
    used = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            used.update(_REFERENCE.findall(value))
            if _local(key) == "href" and value.startswith("#"):
                used.add(value[1:])
    for element in root.iter():
        attributes = {}
        for key, value in element.attrib.items():
            local, text = _local(key), value
            if local == "id":
                if value not in used:
                    continue
                text = f"{name}-{value}"
            elif local == "href":
                text = f"#{name}-{value[1:]}" if value.startswith("#") else value
            elif local in ("d", "points", "x", "y", "transform", "width", "height"):
                text = _DECIMALS.sub(r"\1", value)
            attributes[local] = _coloured(_REFERENCE.sub(rf"url(#{name}-\1)", text))
        if _local(element.tag) == "text" and "fill" not in attributes.get("style", ""):
            attributes["fill"] = _VARIABLES[INK]
        element.attrib = attributes


def _coloured(text: str) -> str:
    text = _FONT.sub(r"font-size: \1", text)
    return _COLOUR.sub(lambda found: _VARIABLES.get(found[0].lower(), found[0]), text)


def _written(element: ET.Element) -> Iterator[str]:
    """Yield an element as HTML has it: without namespaces, everything quoted."""
    tag = _local(element.tag)
    attributes = "".join(f' {key}="{html.escape(v)}"' for key, v in element.attrib.items())
    yield f"<{tag}{attributes}>"
    if text := (element.text or "").strip():
        yield html.escape(text)
    for child in element:
        yield from _written(child)
    yield f"</{tag}>"


def _local(tag: str) -> str:
    return _NAMESPACE.sub("", tag)


MISSING_HEIGHT = 1.0  # inches
_WHY = {
    "diverged": "diverged",
    "gone": "lost",
    "stalled": "stalled",
    "slow": "slow",
    "quarantined": "quarantined",
    "refused": "refused",
    "waiting": "waits",
}


@dataclass(frozen=True)
class Chart:
    name: str  # a word; that of its file, too
    title: str
    text: str  # how to read it
    alt: str  # what is to be seen, in words
    draw: Callable[[Figure], None]  # into an empty figure
    height: float = HEIGHT  # in inches


@dataclass(frozen=True)
class Drawn:
    chart: Chart
    svg: str


def drawn(charts: list[Chart], folder: Path) -> Iterator[Drawn]:
    """Draw pictures, and write each as a PNG into a folder."""
    with drawing():
        for chart in charts:
            figure = new_figure(chart.height)
            chart.draw(figure)
            save_png(figure, folder / f"{chart.name}.png")
            yield Drawn(chart, inline_svg(figure, chart.name, chart.alt))


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
    has_distance = any(np.isfinite(d).any() for _, d in curves.distance_curves(run).values())
    return [
        Chart(
            "loss",
            "Training loss",
            "What each node has told with its updates.",
            _alt_of_loss(facts),
            lambda figure: curves.draw_loss(figure, run, looks),
        ),
        Chart(
            "speed",
            "Steps per second",
            "Training steps that each node has taken.",
            _alt_of_speed(facts),
            lambda figure: curves.draw_speed(figure, run, looks),
        ),
        Chart(
            "consensus",
            "Consensus distance",
            "How far the parameters of a node were from those that it merged.",
            _alt_of_distance(facts),
            lambda figure: curves.draw_distance(figure, run, looks),
            HEIGHT if has_distance else MISSING_HEIGHT,
        ),
        Chart(
            "time",
            "Where the time went",
            "Training is whatever is no gossip: loading data, computing, and what a node does "
            "before its first update.",
            _alt_of_time(facts),
            lambda figure: bars.draw_time(figure, run),
            bars.height_of(len(run.nodes)),
        ),
    ]


def gossip_charts(facts: Facts) -> list[Chart]:
    run = facts.run
    return [
        Chart(
            "pairs",
            "Who has merged whom",
            "A row is the node that merges, a column the node whose parameters it took; an empty "
            "cell is a pair that never did.",
            _alt_of_pairs(facts),
            lambda figure: bars.draw_pairs(figure, run),
            3.6,
        ),
        Chart(
            "staleness",
            "Staleness of what was merged",
            "How many updates the other node was behind the one that merged it.",
            _alt_of_staleness(facts),
            lambda figure: bars.draw_staleness(figure, run),
        ),
        Chart(
            "bytes",
            "Bytes",
            "For each node what went out, and below it what came in. What nodes on one host map "
            "from each other is not sent.",
            _alt_of_bytes(facts),
            lambda figure: bars.draw_bytes(figure, run),
            bars.height_of(len(run.nodes)) + 0.6,
        ),
        Chart(
            "events",
            "What happened when",
            "A line is the life of a node; a mark on it is what happened to that node.",
            _alt_of_events(facts),
            lambda figure: bars.draw_events(figure, facts),
            bars.height_of(len(run.nodes)) + 0.6,
        ),
    ]


def _alt_of_loss(facts: Facts) -> str:
    losses, best = facts.losses, facts.best
    if not losses or best is None or best.log.best is None:
        return "No loss is known."
    return (
        f"Loss of {plural(len(facts.nodes), 'node')} over {duration(facts.run.seconds)}. At the "
        f"end it lies between {number(min(losses))} and {number(max(losses))}; the lowest ever is "
        f"{number(best.log.best.loss)}, of {best.name}."
    )


def _alt_of_speed(facts: Facts) -> str:
    speeds = {n: f.rates.steps_per_s for n, f in facts.nodes.items() if f.rates.steps_per_s}
    if not speeds:
        return "No speed is known."
    slowest, fastest = min(speeds, key=lambda n: speeds[n]), max(speeds, key=lambda n: speeds[n])
    return (
        f"Steps per second of each node. The fastest is {fastest} with {number(speeds[fastest], 3)}"
        f", the slowest {slowest} with {number(speeds[slowest], 3)}."
    )


def _alt_of_distance(facts: Facts) -> str:
    at, middle = curves.middle_of(curves.distance_curves(facts.run), np.nanmedian)
    if not len(at):
        return "No consensus distance is known."
    return (
        f"Median distance between the nodes: {number(float(middle[0]), 3)} at the beginning, "
        f"{number(float(middle[-1]), 3)} at the end."
    )


def _alt_of_time(facts: Facts) -> str:
    shares = {name: bars.shares_of(node.log) for name, node in facts.nodes.items()}
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


def _alt_of_pairs(facts: Facts) -> str:
    merges = bars.merges_of(facts.run)
    if not merges.any():
        return "Nothing was merged."
    pairs = int((merges > 0).sum())
    row, column = np.unravel_index(int(merges.argmax()), merges.shape)
    listed = list(facts.nodes)
    return (
        f"{plural(int(merges.sum()), 'merge')} in {plural(pairs, 'pair')}; most often, "
        f"{int(merges.max())} times, {listed[row]} has merged {listed[column]}."
    )


def _alt_of_staleness(facts: Facts) -> str:
    bins = bars.staleness_of(facts.run)
    if bins is None or not sum(bins.counts):
        return "Nothing was merged."
    total = sum(bins.counts)
    seen = list(accumulate(bins.counts))
    bound = (*bins.bounds, math.inf)[next(i for i, s in enumerate(seen) if 2 * s >= total)]
    half = f"at most {bound:g}" if math.isfinite(bound) else f"more than {bins.bounds[-1]:g}"
    return f"Histogram of {total:,} merges: half of them were {half} updates behind."


def _alt_of_bytes(facts: Facts) -> str:
    totals = [bars.traffic_of(node.log) for node in facts.nodes.values()]
    parts = [f"{size(sum(t[kind] for t in totals))} {kind}" for kind in totals[0]]
    return f"Bytes of each node; in all {names(parts)}."


def _alt_of_events(facts: Facts) -> str:
    counts: dict[str, int] = {}
    for event, _ in bars.moments(facts.run):
        counts[event.kind] = counts.get(event.kind, 0) + 1
    parts = [f"{count} times {kind.replace('_', ' ')}" for kind, count in counts.items()]
    told = f"Marks: {names(parts, 20)}." if parts else "Nothing happened to any node."
    return f"The life of each node as a line. {told}"
