"""What all pictures share: size, colours for light and dark pages, axes, and who is shown how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

from dpwa.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.5, 3.0  # inches; small, so that the text can be read on a telephone
DPI = 180
LONGEST_LABEL = 14
MOST_COLOURS = 8  # nodes of which each has its own
MOST_SHOWN = 5  # of more nodes: those that stand out
MOST_LABELLED = 24  # rows; of more, each so many-th has its name
MOST_POINTS = 240  # of a curve
MOST_POINTS_OF_ALL = 8_000

INK, FAINT, LINE, OTHERS, PAGE = "#222325", "#5f6368", "#d9dce0", "#b3b8bf", "#fefefe"

# Okabe and Ito's palette, told apart with every common kind of colour blindness; yellow is left out
# because thin yellow lines vanish on white. On dark pages each has a lighter stand-in.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a8a")
DARK = {
    INK: "#e8eaed",
    FAINT: "#a6abb3",
    LINE: "#363a41",
    OTHERS: "#5c626b",
    PAGE: "#16181d",
    "#0072b2": "#4aa3e8",
    "#d55e00": "#ff7f3f",
    "#009e73": "#2fc99b",
    "#cc79a7": "#e99fca",
    "#e69f00": "#f3b73e",
    "#56b4e9": "#a5dcff",
    "#000000": "#ffffff",
    "#8a8a8a": "#9aa0a8",
}
_STYLES: tuple[Any, ...] = (
    "-",
    "-",
    "-",
    "-",
    (0, (5, 1.5)),
    (0, (5, 1.5)),
    (0, (2, 1)),
    (0, (2, 1)),
)
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpwa",
    "svg.image_inline": True,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.unicode_minus": True,
    "path.simplify": True,
}


@dataclass(frozen=True)
class LineStyle:
    """How a node is drawn.

    Attributes:
        colour: in light.
        style: of its lines.
        label: in the legend; empty: it is not there.
    """

    colour: str
    style: Any = "-"
    label: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """What its lines are drawn with."""
        width, order = (1.6, 3) if self.label else (0.7, 2)
        return {"color": self.colour, "linestyle": self.style, "linewidth": width, "zorder": order}


Looks = Mapping[str, LineStyle]


def looks_of(names: Sequence[str], remarkable: Mapping[str, str]) -> Looks:
    """Return how nodes are drawn: each in a colour of its own, or of many those that stand out.

    Args:
        names: of all nodes.
        remarkable: what stands out, in a word, by name; the most important first.
    """
    if len(names) <= MOST_COLOURS:
        return {
            n: LineStyle(c, s, short(n)) for n, c, s in zip(names, PALETTE, _STYLES, strict=False)
        }
    looks = {name: LineStyle(OTHERS) for name in names}
    for (name, why), colour in zip(list(remarkable.items())[:MOST_SHOWN], PALETTE, strict=False):
        looks[name] = LineStyle(colour, "-", f"{short(name)} ({why})")
    return looks


def short(name: str) -> str:
    """Return a name that fits into a picture."""
    name = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
    return f" {name}" if name.startswith("_") else name  # legends pass over what begins with _


def require_matplotlib(command: str) -> None:
    """Make sure that pictures can be drawn, before anything takes its time.

    Raises:
        UserError: matplotlib is missing.
    """
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"dpwa {command} needs matplotlib; install it with: "
            'pip install -c constraints.txt ".[plot]" in a checkout [DPWA-E285]'
        )


@contextmanager
def drawing() -> Iterator[None]:
    """Have pictures drawn as they are drawn here, whatever the user has set."""
    import matplotlib as mpl

    with mpl.rc_context(), catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        filterwarnings("ignore", message="Glyph .* missing from")  # of foreign names
        yield


def new_figure(height: float = HEIGHT, width: float = WIDTH) -> Figure:
    """Return an empty figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="none", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as it looks on a light page.

    Raises:
        OSError: it cannot be written.
    """
    figure.savefig(path, format="png", facecolor=PAGE)


def label(axes: Axes, width: str, height: str, *, grid: str = "y") -> None:
    """Name the axes, and make them unobtrusive."""
    axes.set_facecolor("none")
    axes.set_xlabel(width, color=FAINT)
    axes.set_ylabel(height, color=FAINT)
    if grid:
        axes.grid(axis=grid, color=LINE, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)


def legend(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    """Put a legend below everything."""
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
    """Return the entries of a legend for these nodes."""
    from matplotlib.lines import Line2D

    shown = [looks[name] for name in names if looks[name].label]
    handles = [
        Line2D([], [], color=k.colour, linestyle=k.style, linewidth=2, label=k.label) for k in shown
    ]
    if len(shown) < len(names):
        handles.append(Line2D([], [], color=OTHERS, linewidth=1, label="the others"))
    return handles


def nothing(axes: Axes, text: str) -> None:
    """Say why there is nothing to be seen."""
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", color=FAINT, transform=axes.transAxes)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return in which unit a time axis of this length is labelled: its seconds, and its name."""
    for length, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * length:
            return length, unit
    return 1.0, "seconds"
