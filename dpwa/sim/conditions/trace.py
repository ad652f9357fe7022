"""Traces of churn: CSV with the columns time_s, node and event."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence

from dpwa.config.problems import Place, Problems, shown
from dpwa.config.tree import read_text
from dpwa.errors import ConfigError

COLUMNS = ("time_s", "node", "event")
EVENTS = ("start", "kill", "leave")

TraceLine = tuple[float, int, str]


def read_trace(path: str, nodes: int) -> tuple[TraceLine, ...]:
    """Read a trace.

    Args:
        path: of the file.
        nodes: how many there are in the scenario.

    Returns:
        What happens: second, index of the node, and one of `EVENTS`; in order of time.

    Raises:
        ConfigError: the file cannot be read, or has mistakes: all of them, with their lines.
    """
    problems = Problems()
    lines = list(_lines(path, read_text(path), nodes, problems))
    if problems.lines():
        raise ConfigError(problems.lines())
    return tuple(sorted(lines, key=lambda line: line[0]))


def _lines(path: str, text: str, nodes: int, problems: Problems) -> Iterator[TraceLine]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    header = [name.strip() for name in next(rows, [])]
    if sorted(header) != sorted(COLUMNS):
        expected = f"expected the columns {', '.join(COLUMNS)}"
        problems.add(Place(path, 1, 1), "", f"{expected} (got {shown(','.join(header))})")
        return
    for cells in rows:
        if any(cell.strip() for cell in cells):
            line = _line(dict(zip(header, cells, strict=False)), nodes)
            if isinstance(line, str):
                problems.add(Place(path, rows.line_num, 1), "", line)
            else:
                yield line


def _line(cells: dict[str, str], nodes: int) -> TraceLine | str:
    """Return what a line says, or what is wrong with it."""
    texts: Sequence[str] = [cells.get(column, "").strip() for column in COLUMNS]
    try:
        time_s = float(texts[0])
    except ValueError:
        time_s = math.nan
    if not 0.0 <= time_s < math.inf:
        return f"time_s: expected seconds from 0 on (got {shown(texts[0])})"
    if not texts[1].isdecimal() or int(texts[1]) >= nodes:
        return f"node: expected a number from 0 to {nodes - 1} (got {shown(texts[1])})"
    if texts[2] not in EVENTS:
        return f"event: expected one of {', '.join(EVENTS)} (got {shown(texts[2])})"
    return time_s, int(texts[1]), texts[2]
