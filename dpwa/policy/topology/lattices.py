"""Rows and columns: nodes are put in reading order, and the last row may be short."""

from __future__ import annotations

import math


def columns_of(columns: int | None, nodes: int) -> int:
    """Return how many nodes stand in a row.

    Args:
        columns: what was asked for; `None` chooses the most square rectangle of exactly N nodes. If
            even that is more than twice as wide as high (N is prime, say), it is ceil(sqrt(N)).
        nodes: how many there are, N.
    """
    if columns is not None:
        return min(columns, nodes)
    rows = next(rows for rows in range(math.isqrt(nodes), 0, -1) if nodes % rows == 0)
    widest = 2 * rows
    return nodes // rows if nodes // rows <= widest else math.isqrt(nodes - 1) + 1


def grid_neighbours(columns: int | None, index: int, nodes: int) -> list[int]:
    """Return the nodes above, left, right and below, where there are any."""
    width = columns_of(columns, nodes)
    column = index % width
    found = [index - width, index + width]
    if column > 0:
        found.append(index - 1)
    if column < width - 1:
        found.append(index + 1)
    return sorted(other for other in found if 0 <= other < nodes)


def torus_neighbours(columns: int | None, index: int, nodes: int) -> list[int]:
    """Return the next nodes in both directions of one's row and of one's column.

    Each row and each column is a circle of as many nodes as it has: where the last row is short,
    those columns that it does not reach are shorter by one.
    """
    width = columns_of(columns, nodes)
    row, column = divmod(index, width)
    row_length = min(width, nodes - row * width)
    column_length = len(range(column, nodes, width))
    found = {row * width + (column + step) % row_length for step in (-1, 1)}
    found |= {(row + step) % column_length * width + column for step in (-1, 1)}
    return sorted(found - {index})
