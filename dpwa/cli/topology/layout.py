"""Where the nodes of a drawing stand, in inches from the middle of a square."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpwa.policy.topology.lattices import columns_of
from dpwa.policy.topology.rules import LatticeOptions, StarOptions
from dpwa.types import StrictModel

RADIUS = 3.1
LARGEST_NODE = 0.62

Points = NDArray[np.float64]


@dataclass(frozen=True)
class GraphLayout:
    """Where the nodes stand.

    Attributes:
        points: shape `(N, 2)`, in inches; y points upwards.
        spacing: distance of the closest two, in inches.
        columns: nodes in a row; 0 if they do not stand in rows.
    """

    points: Points
    spacing: float
    columns: int = 0

    @property
    def node_inches(self) -> float:
        """Diameter of a node."""
        return min(LARGEST_NODE, 0.62 * self.spacing)

    def wraps(self, one: int, two: int) -> bool:
        """Tell whether an edge goes from one end of a row or column to the other."""
        distance = np.abs(self.points[one] - self.points[two]).sum()
        return self.columns > 0 and bool(distance > 1.5 * self.spacing)


def layout_of(options: StrictModel, nodes: int) -> GraphLayout:
    """Put lattices into rows, the middle of a star into the middle, and all others on a circle."""
    if isinstance(options, LatticeOptions):
        return _rows(columns_of(options.columns, nodes), nodes)
    if isinstance(options, StarOptions) and nodes > 2:
        around = _circle(nodes - 1)
        points = np.insert(around.points, options.center, 0.0, axis=0)
        return GraphLayout(points, around.spacing)
    return _circle(nodes)


def _circle(nodes: int) -> GraphLayout:
    """The first node stands at the top, the others follow clockwise."""
    if nodes == 1:
        return GraphLayout(np.zeros((1, 2)), RADIUS)
    angles = 2 * np.pi * np.arange(nodes) / nodes
    points = RADIUS * np.column_stack([np.sin(angles), np.cos(angles)])
    return GraphLayout(points, 2 * RADIUS * math.sin(math.pi / nodes))


def _rows(columns: int, nodes: int) -> GraphLayout:
    """The first node stands at the upper left, the others follow as in a text."""
    rows = math.ceil(nodes / columns)
    spacing = min(2 * RADIUS / max(columns - 1, rows - 1, 2), 1.9)
    row, column = np.divmod(np.arange(nodes), columns)
    points = spacing * np.column_stack([column - (columns - 1) / 2, (rows - 1) / 2 - row])
    return GraphLayout(points, spacing, columns)
