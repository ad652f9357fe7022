"""The columns of `dpwa top`: what stands in each, and how nodes are sorted by it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpwa.cli import screen
from dpwa.observe.rows import NodeRow

Value = float | None
LEAST_NAME = 4
MOST_CURVE = 40
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"
SIGNS = {"bad": "X", "odd": "!"}


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        name: by which `--sort` knows it.
        key: that sorts by it.
        heading: above it.
        width: at least; it is as wide as its widest cell.
        value: of a node; `None`: not known.
        cell: how a value is shown.
        text: what it is, for the page of keys.
    """

    name: str
    key: str
    heading: str
    width: int
    value: Callable[[NodeRow], Value]
    cell: Callable[[float], str]
    text: str


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else screen.number(round(value))


def _tenths(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else screen.number(value)


def _loss(row: NodeRow) -> Value:
    return row.loss


def _clock(row: NodeRow) -> Value:
    return row.clock


def _steps(row: NodeRow) -> Value:
    return row.rates.steps_per_s


def _waiting(row: NodeRow) -> Value:
    return None if row.rates.shares is None else row.rates.shares["wait"]


def _received(row: NodeRow) -> Value:
    return row.rates.received_per_s


def _sent(row: NodeRow) -> Value:
    return row.rates.sent_per_s


def _staleness(row: NodeRow) -> Value:
    return row.rates.staleness


def _distance(row: NodeRow) -> Value:
    return row.consensus_distance


def _score(row: NodeRow) -> Value:
    return row.score


_COLUMNS = (
    Column("loss", "l", "loss", 7, _loss, screen.number, "training loss"),
    Column("clock", "c", "clock", 6, _clock, screen.number, "training clock"),
    Column("steps", "s", "steps/s", 7, _steps, _three_digits, "steps a second"),
    Column("wait", "w", "wait", 5, _waiting, _percent, "share of the time waiting for peers"),
    Column("in", "i", "in/s", 7, _received, screen.size, "bytes received a second"),
    Column("out", "o", "out/s", 7, _sent, screen.size, "bytes sent a second"),
    Column("staleness", "t", "stale", 5, _staleness, _tenths, "staleness of what is merged"),
    Column("distance", "d", "distance", 8, _distance, _three_digits, "consensus distance"),
    Column("score", "p", "score", 5, _score, _three_digits, "score that its peers give it"),
)
COLUMNS = {column.name: column for column in _COLUMNS}
NAME, STATE, CURVE = "name", "state", "curve"
SORTS = {NAME: "n", STATE: "m", **{name: column.key for name, column in COLUMNS.items()}}
# As they stand, and from what is left out last to what is left out first.
ORDER = [NAME, STATE, "loss", CURVE, "clock", "steps", "wait", "in", "out", "staleness"]
ORDER += ["distance", "score"]
IMPORTANCE = [NAME, STATE, "loss", "steps", "wait", CURVE, "clock", "in", "out", "staleness"]
IMPORTANCE += ["distance", "score"]


def word_of(row: NodeRow) -> str:
    """Return what is the matter with a node in one word; its state if nothing is."""
    worst = sorted(row.verdicts, key=lambda verdict: verdict.severity != "bad")
    return worst[0].kind if worst else row.state


def sign_of(row: NodeRow) -> str:
    """Return the sign before a node: `X`, `!`, `?` if it has not answered, or a blank."""
    severities = {verdict.severity for verdict in row.verdicts}
    if "bad" in severities:
        return SIGNS["bad"]
    if severities:
        return SIGNS["odd"]
    return "?" if row.state == "unknown" else " "


def cell_of(row: NodeRow, name: str) -> str:
    """Return what stands in a column of numbers."""
    column = COLUMNS[name]
    value = column.value(row)
    if value is None or math.isnan(value):
        return "-"
    return "inf" if math.isinf(value) else column.cell(value)


def sorted_rows(rows: Sequence[NodeRow], by: str, *, is_reversed: bool = False) -> list[NodeRow]:
    """Return the rows, the smallest first; those of which the value is not known are last.

    Args:
        rows: of all nodes.
        by: one of `SORTS`; `state`: those first with which something is the matter.
        is_reversed: the largest first.
    """
    by_name = sorted(rows, key=lambda row: _natural(row.name))
    if by == NAME:
        return by_name[::-1] if is_reversed else by_name
    if by == STATE:
        return sorted(by_name, key=lambda row: "X!? ".index(sign_of(row)), reverse=is_reversed)
    value = COLUMNS[by].value
    known = [(number, row) for row in by_name if _is_known(number := value(row))]
    known.sort(key=lambda pair: pair[0] or 0.0, reverse=is_reversed)
    return [row for _, row in known] + [row for row in by_name if not _is_known(value(row))]


def sparkline(losses: Sequence[float], width: int, *, is_unicode: bool) -> str:
    """Draw losses, each character the mean of as many; blank where there is none.

    Args:
        losses: oldest first.
        width: how many characters.
        is_unicode: whether block characters can be shown.
    """
    blocks = BLOCKS if is_unicode else ASCII_BLOCKS
    newest = [_mean(part) for part in _parts(losses, width)]
    finite = [loss for loss in newest if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    step = (high / 2 - low / 2) / (len(blocks) - 1) * 2 or 1.0
    drawn = ""
    for loss in newest:
        if math.isnan(loss):
            drawn += " "
        elif math.isinf(loss):
            drawn += "^"
        else:
            drawn += blocks[min(int(loss / step - low / step + 0.5), len(blocks) - 1)]
    return drawn.rjust(width)


def _parts(losses: Sequence[float], width: int) -> list[Sequence[float]]:
    """Cut losses in as many parts as there are characters; in fewer if there are fewer losses."""
    count = min(len(losses), width)
    edges = [index * len(losses) // count for index in range(count + 1)] if count else [0]
    return [losses[first:last] for first, last in itertools.pairwise(edges)]


def _mean(losses: Sequence[float]) -> float:
    known = [loss for loss in losses if not math.isnan(loss)]
    return sum(loss / len(known) for loss in known) if known else math.nan


def _is_known(value: Value) -> bool:
    return value is not None and not math.isnan(value)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Have w2 before w10."""
    parts = re.split(r"(\d+)", name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
