"""Live progress on standard error: bars on a terminal, otherwise lines from time to time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpwa.demo.records import Phase, Record

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 5.0
_TITLES: dict[Phase, str] = {
    "alone": "trains alone",
    "meeting": "waits",
    "gossip": "gossips",
    "finish": "finishes",
}


@contextmanager
def progress_of(names: Sequence[str], steps: int) -> Iterator[ProgressView]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    widest = max(map(len, names))  # otherwise rich shortens the names
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=widest)),
        TextColumn("{task.fields[doing]:<12}"),
        BarColumn(max(1, min(40, console.width - widest - 30))),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield ProgressView(bars, names, steps)


class ProgressView:
    """A progress bar for each node. The bar fills once in each phase of the training.

    Without a terminal, a line is printed when all nodes have reached the next phase. Every few
    seconds, a line shows the progress of the slowest node.
    """

    def __init__(self, bars: Progress, names: Sequence[str], steps: int) -> None:
        self._bars = bars
        self._steps = steps
        self._began = self._noted = time.monotonic()
        self._newest: dict[str, Record | None] = dict.fromkeys(names)
        self._phase = ""
        self._tasks = {
            name: bars.add_task(name, total=steps, doing="starts", accuracy="") for name in names
        }
        if bars.disable:
            self.note(f"{len(names)} nodes start. Each imports torch, which takes some seconds")

    def show(self, name: str, record: Record) -> None:
        self._newest[name] = record
        self._bars.update(
            self._tasks[name],
            completed=record.step,
            doing=_TITLES[record.phase],
            accuracy=f"{record.accuracy:.2f}",
        )
        self._tell_slowest()

    def failed(self, name: str, exit_code: int) -> None:
        del self._newest[name]
        self._bars.update(self._tasks[name], doing=f"failed ({exit_code})")
        if self._bars.disable:
            self.note(f"{name} has failed (exit code {exit_code})")
            self._tell_slowest()

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _tell_slowest(self) -> None:
        records = [record for record in self._newest.values() if record is not None]
        if not self._bars.disable or not records or len(records) < len(self._newest):
            return
        order = list(_TITLES)
        slowest = min(records, key=lambda record: (order.index(record.phase), record.step))
        now = time.monotonic()
        if slowest.phase != self._phase or now - self._noted >= LINE_EVERY_S:
            self._phase, self._noted = slowest.phase, now
            self.note(
                f"{now - self._began:4.0f} s  the slowest node {_TITLES[slowest.phase]}: step "
                f"{slowest.step} of {self._steps}, accuracy {slowest.accuracy:.2f}"
            )
