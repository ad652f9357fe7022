"""Live progress on standard error: bars on a terminal, an occasional plain line elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpwa.demo.records import MEET_TIMEOUT_S, Phase, Record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PLAIN_INTERVAL_S = 1.0
STARTING_INTERVAL_S = 5.0  # between lines about nodes that have not started yet
_TITLES: dict[Phase, str] = {
    "alone": "training alone",
    "meeting": "waiting for others",
    "gossip": "training with gossip",
    "mixing": "averaging at the end",
}
_SHORT_TITLES: dict[Phase, str] = {
    "alone": "alone",
    "meeting": "waiting",
    "gossip": "gossip",
    "mixing": "ending",
}
NARROW_COLUMNS = 60  # a terminal with fewer gets no bars, and shorter words


@contextmanager
def progress_view(names: Sequence[str], steps: int) -> Iterator[PlainView | BarsView]:
    """Show progress until the block ends, as it suits standard error."""
    if not sys.stderr.isatty():
        view, ended = PlainView(names, steps), threading.Event()
        watch = threading.Thread(target=view.watch_start, args=(ended,), daemon=True)
        watch.start()
        try:
            yield view
        finally:
            ended.set()
            watch.join()
        return
    from rich.console import Console

    console = Console(stderr=True)
    is_narrow = console.width < NARROW_COLUMNS
    with _bars(console, max(map(len, names)), is_narrow) as bars:
        yield BarsView(bars, names, steps, _SHORT_TITLES if is_narrow else _TITLES)


class PlainView:
    """One line every few seconds: what the slowest node does and how good the nodes are."""

    def __init__(self, names: Sequence[str], steps: int) -> None:
        self._newest: dict[str, Record | None] = dict.fromkeys(names)
        self._last_of: dict[tuple[str, Phase], Record] = {}
        self._steps = steps
        self._began = time.monotonic()
        self._printed = self._began
        self._phase: Phase | None = None

    def show(self, name: str, record: Record) -> None:
        """Print a line when the last one is old enough, or when all have reached a phase."""
        self._newest[name] = record
        self._last_of[name, record.phase] = record
        self._tell(PLAIN_INTERVAL_S)

    def watch_start(self, ended: threading.Event, every_s: float = STARTING_INTERVAL_S) -> None:
        """Say now and then what is waited for, until all nodes have started; on a thread."""
        while not ended.wait(every_s):
            missing = [name for name, record in tuple(self._newest.items()) if record is None]
            if not missing:
                return
            elapsed_s = time.monotonic() - self._began
            self.note(f"{elapsed_s:4.0f} s  {', '.join(missing)} still start (they import torch)")

    def failed(self, name: str, exit_code: int) -> None:
        del self._newest[name]
        self.note(f"{name} has failed (exit code {exit_code})")
        if self._newest:
            self._tell(math.inf)

    def note(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _tell(self, interval_s: float) -> None:
        known = [record for record in self._newest.values() if record is not None]
        slowest = self._slowest(known)
        phase = slowest.phase if slowest else None
        now = time.monotonic()
        if now - self._printed >= interval_s or phase != self._phase:
            self._printed, self._phase = now, phase
            self.note(f"{now - self._began:4.0f} s  {self._summary(known, slowest)}")

    def _slowest(self, known: Sequence[Record]) -> Record | None:
        if not known or len(known) < len(self._newest):
            return None
        order = list(_TITLES)
        return min(known, key=lambda record: (order.index(record.phase), record.step))

    def _summary(self, known: Sequence[Record], slowest: Record | None) -> str:
        if slowest is None:
            return f"{len(known)} of {len(self._newest)} nodes have started"
        title = _TITLES[slowest.phase]
        if slowest.phase == "meeting":
            return f"{title}, at most {MEET_TIMEOUT_S:.0f} s"
        same = [self._last_of.get((name, slowest.phase)) for name in self._newest]
        accuracies = [record.accuracy for record in same if record is not None]
        mean = sum(accuracies) / len(accuracies)
        return f"{title}: step {slowest.step} of {self._steps}, mean test accuracy {mean:.2f}"


class BarsView:
    """One bar per node; it fills once for each kind of training."""

    def __init__(
        self, bars: Progress, names: Sequence[str], steps: int, titles: Mapping[Phase, str]
    ) -> None:
        self._bars = bars
        self._titles = titles
        self._tasks = {
            name: bars.add_task(name, total=steps, doing="", accuracy="", merges="")
            for name in names
        }

    def show(self, name: str, record: Record) -> None:
        self._bars.update(
            self._tasks[name],
            completed=record.step,
            doing=self._titles[record.phase],
            accuracy=f"{record.accuracy:.2f}",
            merges=f"{record.merges} merges" if record.merges else "",
        )

    def failed(self, name: str, exit_code: int) -> None:
        self._bars.update(self._tasks[name], doing=f"failed ({exit_code})")

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)


def _bars(console: Console, name_width: int, is_narrow: bool) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Doing(ProgressColumn):
        """What a node does; before its first record, for how many seconds it is awaited."""

        def render(self, task: Task) -> Text:
            waited = f"{task.elapsed or 0.0:.0f} s"
            starting = f"start {waited}" if is_narrow else f"imports torch, {waited}"
            return Text(f"{task.fields['doing'] or starting:<{8 if is_narrow else 20}}")

    # Without a fixed width, rich takes the room that is missing from the names.
    name = Column(no_wrap=True, min_width=name_width)
    columns: list[ProgressColumn] = [TextColumn("[bold]{task.description}", table_column=name)]
    if is_narrow:
        columns += [
            Doing(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
        ]
    else:
        columns += [
            Doing(),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]:<4}"),
            TextColumn("[dim]{task.fields[merges]}"),
        ]
    return Progress(*columns, console=console, redirect_stdout=False)
