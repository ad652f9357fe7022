"""Reads a run directory, line by line, so that any amount of logs takes bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpwa.errors import UserError
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import FIGURES, NAMES
from dpwa.observe.run_data import (
    BestLoss,
    Bins,
    Exchanged,
    NodeLog,
    ProcessLog,
    Run,
    RunSpan,
)
from dpwa.observe.run_files import (
    LogFile,
    find_files,
    lines_of,
    parsed,
    shown_name,
    split_runs,
    time_of,
)
from dpwa.observe.thinning import ThinnedEvents, ThinnedRows
from dpwa.types import JsonObject

MOST_SAMPLES = 4000  # that are kept of a node, of few nodes
MOST_OF_ALL = 400_000  # samples of all nodes together
LEAST_SAMPLES = 200
MOST_EVENTS = 400  # of each kind, that are kept of a node
MOST_REMARKS = 20
LONGEST_TEXT = 300
PROGRESS_BYTES = 1 << 23
COUNTERS = tuple(figure.name for figure in FIGURES if figure.kind == "counter")

Progress = Callable[[int, int], None]

_PEERS = b'{"type":"peers"'
_OF_PEERS = {
    "merges": "merges",
    "merged_bytes": "merged_bytes",
    "bytes_received": "received_bytes",
    "bytes_sent": "sent_bytes",
}


def read_run(
    folder: str | Path,
    number: int | None = None,
    progress: Progress | None = None,
    most_samples: int | None = None,
) -> Run:
    """Read what the nodes of a run have written.

    Args:
        folder: of the run logs.
        number: of the run, if the folder has several; `None`: the newest.
        progress: is told now and then how many bytes were read, of how many.
        most_samples: that are kept of a node, at least 4; `None`: some thousand, and fewer the more
            nodes there are.

    Raises:
        UserError: the folder or its files cannot be read, or there is no such run.
    """
    path = Path(folder)
    files, remarks = find_files(path)
    runs = split_runs(files)
    if number is not None and not 1 <= number <= len(runs):
        raise UserError(f"--run: expected a number from 1 to {len(runs)} (got {number}): {path}")
    chosen = len(runs) if number is None else number
    return _RunReader(runs[chosen - 1], remarks, progress, most_samples).run(path, runs, chosen)


class _RunReader:
    """Reads the files of one run."""

    def __init__(
        self,
        files: Sequence[LogFile],
        remarks: list[str],
        progress: Progress | None,
        most_samples: int | None,
    ) -> None:
        self._files = files
        self._remarks = remarks
        self._most_samples = most_samples
        self._progress = progress or (lambda _done, _total: None)
        self._total = sum(log.nbytes for log in files)
        self._done = self._told = 0

    def run(self, folder: Path, runs: Sequence[Sequence[LogFile]], number: int) -> Run:
        of: dict[str, list[LogFile]] = {}
        for log in self._files:
            of.setdefault(log.name, []).append(log)
        fair = max(LEAST_SAMPLES, min(MOST_SAMPLES, MOST_OF_ALL // len(of)))
        room = fair if self._most_samples is None else max(4, self._most_samples)
        nodes = {}
        for name in sorted(of, key=_order):
            gathering = _Gathering(name, room)
            for log in of[name]:
                self._read(log, gathering)
            nodes[name] = gathering.done()
        self._progress(self._total, self._total)
        if len(self._remarks) > MOST_REMARKS:
            rest = len(self._remarks) - MOST_REMARKS
            self._remarks[MOST_REMARKS:] = [f"and {rest} remarks like these"]
        spans = tuple(_span(index, files) for index, files in enumerate(runs, 1))
        return Run(folder, nodes, spans, number, tuple(self._remarks), self._total)

    def _read(self, log: LogFile, gathering: _Gathering) -> None:
        gathering.begin(log)
        damaged = 0
        try:
            for line in lines_of(log.path):
                damaged += not gathering.take(line)
                self._count(len(line))
        except OSError as error:
            self._remarks.append(f"{log.path.name} cannot be read to its end ({error.strerror})")
        damaged += gathering.end()
        if damaged:
            lines = "1 damaged line was" if damaged == 1 else f"{damaged} damaged lines were"
            self._remarks.append(f"{log.path.name}: {lines} passed over")

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._done - self._told >= PROGRESS_BYTES:
            self._told = self._done
            self._progress(self._done, max(self._done, self._total))


class _Gathering:
    """Gathers what the files of one node say, each read after the one before."""

    def __init__(self, name: str, room: int) -> None:
        self._name = name
        self._told: JsonObject = {}
        self._rows = ThinnedRows(room, 2 + len(NAMES))
        self._events = ThinnedEvents(MOST_EVENTS)
        self._processes: list[ProcessLog] = []
        self._before = dict.fromkeys(COUNTERS, 0.0)  # of the processes before
        self._samples = 0
        self._newest_time = -math.inf
        self._best = BestLoss(math.inf, math.nan, math.nan)
        self._exchanged: dict[str, Exchanged] = {}
        self._bins: dict[str, Bins] = {}

    def begin(self, log: LogFile) -> None:
        """Begin with a file."""
        self._told = log.told
        self._processes.append(_process(log))
        self._peers: list[bytes] = []  # the last two: only the last counts, and it may be torn
        self._latest: JsonObject = {}

    def take(self, line: bytes) -> bool:
        """Take a line; return whether it is whole."""
        if line.startswith(_PEERS) and line.endswith(b"}\n"):
            self._peers = [*self._peers[-1:], line]
            return True
        found = parsed(line)
        at = None if found is None else time_of(found)
        if found is None or at is None:
            return False
        kind = found.get("type")
        if kind == "sample":
            self._sample(at, found)
        elif kind == "event":
            self._event(at, found)
        elif kind == "peers":
            self._peers = [*self._peers[-1:], line]
        return True

    def end(self) -> int:
        """End with a file; return how many of its lines were damaged, of those kept until now."""
        self._rows.keep_newest()
        for name in COUNTERS:
            self._before[name] += _known(self._latest.get(name))
        damaged = 0
        for line in reversed(self._peers):
            found = parsed(line)
            if found is not None and self._take_peers(found):
                break
            damaged += 1
        return damaged

    def done(self) -> NodeLog:
        """Return what all files have said."""
        rows = self._rows.rows()
        return NodeLog(
            name=self._name,
            told=self._told,
            processes=tuple(self._processes),
            rows=np.delete(rows, 1, axis=1),
            process=rows[:, 1].astype(np.int64),
            sample_count=self._samples,
            best=self._best if math.isfinite(self._best.loss) else None,
            events=self._events.events(),
            event_counts=self._events.counts,
            exchanged=self._exchanged,
            waits=self._bins.get("waits"),
            staleness=self._bins.get("staleness"),
        )

    def _sample(self, at: float, line: JsonObject) -> None:
        self._samples += 1
        self._latest = line
        loss = line.get("loss")
        if isinstance(loss, (int, float)) and loss < self._best.loss:
            steps = self._before["steps"] + _known(line.get("steps"))
            self._best = BestLoss(_number(loss), at, steps)
        if at <= self._newest_time:  # a clock was set back, or two processes had one name
            return
        self._newest_time = at
        process = len(self._processes) - 1
        before = self._before
        self._rows.add(
            at,
            lambda: [
                at,
                process,
                *(_number(line.get(name)) + before.get(name, 0.0) for name in NAMES),
            ],
        )

    def _event(self, at: float, line: JsonObject) -> None:
        kind, about, text = (line.get(key) for key in ("kind", "about", "text"))
        if isinstance(kind, str) and isinstance(about, str):
            told = text[:LONGEST_TEXT] if isinstance(text, str) else ""
            self._events.add(RunEvent(at, self._name, kind[:40], shown_name(about), told))

    def _take_peers(self, line: JsonObject) -> bool:
        peers = line.get("peers")
        if not isinstance(peers, dict):
            return False
        for name, told in peers.items():
            if isinstance(told, dict):
                exchanged = self._exchanged.setdefault(shown_name(name), Exchanged())
                for key, attribute in _OF_PEERS.items():
                    known = getattr(exchanged, attribute) + int(_known(told.get(key)))
                    setattr(exchanged, attribute, known)
                exchanged.health = str(told.get("health") or "")[:40]
        for key in ("waits", "staleness"):
            if (bins := _bins(line.get(key))) is not None:
                self._bins[key] = _together(self._bins.get(key), bins)
        return True


def _process(log: LogFile) -> ProcessLog:
    host, pid = log.told.get("host"), log.told.get("pid")
    return ProcessLog(
        log.began,
        log.last,
        log.ended,
        shown_name(host) if isinstance(host, str) else "",
        pid if isinstance(pid, int) else 0,
        log.problem,
    )


def _span(number: int, files: Sequence[LogFile]) -> RunSpan:
    nodes = len({log.name for log in files})
    return RunSpan(number, files[0].began, max(log.last for log in files), nodes)


def _number(value: Any) -> float:
    """Return a figure of a line; NaN if it is not known."""
    if value is None or value is True or value is False:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _known(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) else 0.0


def _bins(told: Any) -> Bins | None:
    if not isinstance(told, dict):
        return None
    bounds, counts = told.get("bounds"), told.get("counts")
    if not isinstance(bounds, list) or not isinstance(counts, list):
        return None
    if len(counts) != len(bounds) + 1 or len(bounds) > 1000:
        return None
    return Bins(tuple(map(_number, bounds)), tuple(int(_known(count)) for count in counts))


def _together(one: Bins | None, other: Bins) -> Bins:
    if one is None or one.bounds != other.bounds:
        return other
    counts = zip(one.counts, other.counts, strict=True)
    return Bins(one.bounds, tuple(a + b for a, b in counts))


def _order(name: str) -> list[Any]:
    """Sort w2 before w10."""
    return [(int(part), "") if part.isdigit() else (math.inf, part) for part in _PARTS.split(name)]


_PARTS = re.compile(r"(\d{1,18})", re.ASCII)
