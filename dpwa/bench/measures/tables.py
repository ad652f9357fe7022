"""Reading a table and adding to it, as users do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpwa.bench.measures.timed import Timed, Work
from dpwa.bench.records import Sample
from dpwa.bench.suites.tables import ROWS_SHARE

if TYPE_CHECKING:
    from dpwa.tables.table import ArrayTable


@dataclass
class TableWork:
    """What this process does with a table.

    Attributes:
        table: of shape (rows, columns).
        delta: what is added to all rows, of the shape of the table; its first rows are added to
            some.
        rng: draws those.
    """

    table: ArrayTable
    delta: np.ndarray
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Draw other rows than before."""
        rows = len(self.delta)
        self._ids = self.rng.choice(rows, round(rows * ROWS_SHARE), replace=False)

    def get_rows(self) -> None:
        """Read some rows."""
        self.table.get(self._ids)

    def get_all(self) -> None:
        """Read all rows."""
        self.table.get()

    def add_rows(self) -> None:
        """Add to some rows, until that is in place."""
        self.table.add(self.delta[: len(self._ids)], self._ids, sync=True)

    def add_rows_async(self) -> None:
        """Add to some rows without waiting."""
        self.table.add(self.delta[: len(self._ids)], self._ids)

    def add_all(self) -> None:
        """Add to all rows, until that is in place."""
        self.table.add(self.delta, sync=True)


class OnTable(Timed):
    """Times something that a process does with a table, with other rows each time.

    Args:
        figure: what its time is called.
        work: what to time.
        draw: draws other rows.
        settle: waits until nothing is left to do; its time is not counted.
        takes_part: whether this process does.
    """

    def __init__(
        self, figure: str, work: Work, draw: Work, settle: Work, *, takes_part: bool
    ) -> None:
        super().__init__(figure, work, takes_part=takes_part)
        self._draw = draw
        self._settle = settle

    def prepare(self) -> None:
        """Draw rows."""
        self._draw()

    def run(self) -> Sample:
        """Time the work, and leave nothing of it to what comes next."""
        sample = super().run()
        self._settle()
        return sample
