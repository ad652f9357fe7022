"""The common style of all pictures: size, axes, and colours for light and dark pages."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

import numpy as np

from dpwa.files import written
from dpwa.observe.history import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.5, 3.0  # inches; small, so that the text is readable on a phone
DPI = 180
LONGEST_LABEL = 14
MAX_COLOURS = 8  # maximum number of nodes with their own colour
MAX_SHOWN = 5  # number of remarkable nodes that are shown, if there are more nodes
MAX_LABELLED = 24  # maximum number of rows with a name; of more, every N-th
LOG_ABOVE = 20.0  # ratio of values above which an axis is logarithmic
SHORT_LOG = 1000.0  # ratio of values below which a logarithmic axis also labels 2 and 5

INK, FAINT, LINE, OTHERS, PAGE = "#222325", "#5f6368", "#d9dce0", "#b3b8bf", "#fefefe"

# Okabe and Ito's palette, which works with every common kind of colour blindness, without yellow,
# because thin yellow lines are invisible on white. Each colour has a lighter one for dark pages.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a8a")
COLOURS = {  # name in CSS, and colour on dark pages
    INK: ("ink", "#e8eaed"),
    FAINT: ("faint", "#a6abb3"),
    LINE: ("line", "#363a41"),
    OTHERS: ("others", "#5c626b"),
    PAGE: ("card", "#16181d"),
    "#0072b2": ("blue", "#4aa3e8"),
    "#d55e00": ("vermilion", "#ff7f3f"),
    "#009e73": ("green", "#2fc99b"),
    "#cc79a7": ("pink", "#e99fca"),
    "#e69f00": ("orange", "#f3b73e"),
    "#56b4e9": ("sky", "#a5dcff"),
    "#000000": ("black", "#ffffff"),
    "#8a8a8a": ("grey", "#9aa0a8"),
}
_STYLES: tuple[Any, ...] = ("-",) * 4 + ((0, (5, 1.5)),) * 2 + ((0, (2, 1)),) * 2
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": INK,
    "font.size": 9.5,
}
_NO_METADATA: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class LineStyle:
    colour: str  # on light pages
    style: Any = "-"
    label: str = ""  # in the legend; empty for none

    @property
    def line(self) -> dict[str, Any]:
        width, order = (1.6, 3) if self.label else (0.7, 2)
        return {"color": self.colour, "linestyle": self.style, "linewidth": width, "zorder": order}


Looks = Mapping[str, LineStyle]


def looks_of(names: Sequence[str], remarkable: Mapping[str, str]) -> Looks:
    """Return the line styles of nodes. If there are many, only remarkable nodes have a colour.

    `remarkable` has a word with the reason for each remarkable node, the most important first.
    """
    if len(names) <= MAX_COLOURS:
        return {
            n: LineStyle(c, s, short(n)) for n, c, s in zip(names, PALETTE, _STYLES, strict=False)
        }
    looks = {name: LineStyle(OTHERS) for name in names}
    for (name, why), colour in zip(list(remarkable.items())[:MAX_SHOWN], PALETTE, strict=False):
        looks[name] = LineStyle(colour, "-", f"{short(name)} ({why})")
    return looks


def short(name: str) -> str:
    name = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
    return f" {name}" if name.startswith("_") else name  # legends skip labels that begin with _


@contextmanager
def drawing() -> Iterator[None]:
    """Use dpwa's settings of matplotlib, not the user's settings, within this context."""
    import matplotlib as mpl

    with mpl.rc_context(), catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        filterwarnings("ignore", message="Glyph .* missing from")  # names of nodes
        yield


def new_figure(height: float = HEIGHT, width: float = WIDTH) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="none", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    with written(path) as out:
        figure.savefig(out, format="png", facecolor=PAGE)


def label(axes: Axes, width: str, height: str, *, grid: str = "y") -> None:
    axes.set_facecolor("none")
    axes.set_xlabel(width, color=FAINT)
    is_log = axes.get_yscale() == "log"
    axes.set_ylabel(f"{height}, log scale" if is_log else height, color=FAINT)
    if grid:
        axes.grid(axis=grid, color=LINE, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)


def legend(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncol=min(columns, len(handles)),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.8,
            columnspacing=1.2,
        )


def line_handles(looks: Looks, names: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    shown = [looks[name] for name in names if looks[name].label]
    handles = [
        Line2D([], [], color=k.colour, linestyle=k.style, linewidth=2, label=k.label) for k in shown
    ]
    if len(shown) < len(names):
        handles.append(Line2D([], [], color=OTHERS, linewidth=1, label="the others"))
    return handles


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a time axis that covers `seconds`, as seconds per unit and a name."""
    for length, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * length:
            return length, unit
    return 1.0, "seconds"


def scale(axes: Axes, values: Floats) -> None:
    """Make the axis logarithmic if the values differ by orders of magnitude."""
    finite = values[np.isfinite(values)]
    if finite.min() > 0 and finite.max() > LOG_ABOVE * finite.min():
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_yscale("log")
        is_short = finite.max() < SHORT_LOG * finite.min()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")


@dataclass(frozen=True)
class Chart:
    name: str  # a word, also used for the file
    title: str
    text: str  # explanation of the picture
    draw: Callable[[Figure], None]  # draws into an empty figure
    height: float = HEIGHT  # in inches


Drawn = tuple[Chart, str]  # a chart, and its picture as an element of HTML


def drawn(charts: Iterable[Chart], folder: Path) -> Iterator[Drawn]:
    """Draw charts, and write each chart as a PNG into a folder. Yield charts with their SVGs."""
    with drawing():
        for chart in charts:
            figure = new_figure(chart.height)
            chart.draw(figure)
            save_png(figure, folder / f"{chart.name}.png")
            yield chart, inline_svg(figure, chart)


_COLOUR = re.compile(r"#[0-9a-f]{6}")
_FONT = re.compile(r"font: ([\d.]+px) [^;\"]*")
_GROUP = re.compile(r'<g id="[^"]*"')  # no element refers to these identifiers
_VARIABLES = {colour: f"var(--{name})" for colour, (name, _) in COLOURS.items()}


def style_sheet() -> str:
    """Return the colours of all pictures as CSS variables, for light and dark pages."""
    light = "".join(f"--{name}:{colour};" for colour, (name, _) in COLOURS.items())
    dark = "".join(f"--{name}:{other};" for name, other in COLOURS.values())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def inline_svg(figure: Figure, chart: Chart) -> str:
    """Return a figure as an element of HTML, in the colours and the font of the page."""
    import matplotlib as mpl

    data = io.StringIO()
    # The salt makes the identifiers of each picture unique.
    with mpl.rc_context({"svg.hashsalt": chart.name}):
        figure.savefig(data, format="svg", facecolor="none", metadata=_NO_METADATA)
    svg = data.getvalue().partition("<svg ")[2]
    svg = _GROUP.sub("<g", _FONT.sub(r"font-size: \1", svg))
    svg = _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), svg)
    told = f"{chart.title}. The tables have the numbers."
    return f'<svg role="img" aria-label="{html.escape(told)}" {svg}'
