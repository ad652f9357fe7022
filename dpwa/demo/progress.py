"""Live progress on standard error: bars on a terminal, an occasional plain line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dpwa.demo.records import Phase, Record

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_INTERVAL_S = 1.0
_TITLES: dict[Phase, str] = {
    "alone": "training alone",
    "gossip": "training with gossip",
    "mixing": "mixing",
}


class ProgressView(Protocol):
    """Shows records as they come."""

    def show(self, name: str, record: Record) -> None:
        """Show the newest record of one node."""
        ...

    def failed(self, name: str, exit_code: int) -> None:
        """Show that a node has failed; nothing more comes from it."""
        ...

    def note(self, text: str) -> None:
        """Show a line of a node's own output."""
        ...


@contextmanager
def progress_view(names: Sequence[str], steps: int) -> Iterator[ProgressView]:
    """Show progress for as long as the context lasts, in the way that suits standard error."""
    if not sys.stderr.isatty():
        yield PlainView(names, steps)
        return
    with _bars() as bars:
        yield BarsView(bars, names, steps)


class PlainView:
    """One line every few seconds: what the slowest node does and how good the nodes are."""

    def __init__(self, names: Sequence[str], steps: int) -> None:
        self._newest: dict[str, Record | None] = dict.fromkeys(names)
        self._steps = steps
        self._began = time.monotonic()
        self._printed = self._began

    def show(self, name: str, record: Record) -> None:
        """Print a line when the last one is old enough."""
        self._newest[name] = record
        now = time.monotonic()
        if now - self._printed >= PLAIN_INTERVAL_S:
            self._printed = now
            self.note(f"{now - self._began:4.0f} s  {self._summary()}")

    def failed(self, name: str, exit_code: int) -> None:
        """Say so at once, and follow the others."""
        del self._newest[name]
        self.note(f"{name} has failed (exit code {exit_code})")

    def note(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _summary(self) -> str:
        known = [record for record in self._newest.values() if record is not None]
        if len(known) < len(self._newest):
            return f"{len(known)} of {len(self._newest)} nodes have started"
        order = list(_TITLES)
        slowest = min(known, key=lambda record: (order.index(record.phase), record.step))
        mean = sum(record.accuracy for record in known) / len(known)
        return (
            f"{_TITLES[slowest.phase]}: step {slowest.step} of {self._steps}, "
            f"mean test accuracy {mean:.2f}"
        )


class BarsView:
    """One bar per node; it fills once for each kind of training."""

    def __init__(self, bars: Progress, names: Sequence[str], steps: int) -> None:
        self._bars = bars
        self._tasks = {
            name: bars.add_task(name, total=steps, doing="starting", accuracy="", merges="")
            for name in names
        }

    def show(self, name: str, record: Record) -> None:
        """Move the node's bar."""
        self._bars.update(
            self._tasks[name],
            completed=record.step,
            doing=_TITLES[record.phase],
            accuracy=f"accuracy {record.accuracy:.2f}",
            merges=f"{record.merges} merges" if record.merges else "",
        )

    def failed(self, name: str, exit_code: int) -> None:
        """Leave the node's bar where it is."""
        self._bars.update(self._tasks[name], doing=f"failed ({exit_code})")

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("[bold]{task.description}"),
        TextColumn("{task.fields[doing]:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TextColumn("[dim]{task.fields[merges]}"),
        console=Console(stderr=True),
        redirect_stdout=False,
    )
