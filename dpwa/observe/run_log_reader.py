"""Reads a folder of run logs line by line, so that logs of any size need bounded memory."""

from __future__ import annotations

import calendar
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpwa.errors import UserError
from dpwa.files import open_regular
from dpwa.node.report import HistogramReport
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import COUNTERS, NAMES
from dpwa.observe.history import Floats
from dpwa.observe.run_log import RUN_LOG_VERSION, SUFFIX
from dpwa.observe.run_log_contents import (
    BestLoss,
    Exchanged,
    NodeLog,
    ProcessLog,
    Run,
    RunSpan,
)
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

LONGEST_LINE = 1 << 24  # bytes. A longer line counts as damaged
LAST_TIME = 4e9  # seconds since the epoch. A later time counts as damaged
TAIL_BYTES = 1 << 18
LONGEST_NAME = 64  # characters

# Minimum time between the end of a run and the beginning of the next run in the same folder.
GAP_S = 60.0
GAP_AFTER_END_S = 10.0  # if all logs of the earlier run have an end line

_TOLD_BY_NAME = re.compile(r"(.+)-(\d{8}T\d{6})-(\d{1,9})")
_LAST_TIME = re.compile(rb'"time":(\d+(?:\.\d+)?)')


def find_files(folder: Path) -> tuple[list[ProcessLog], list[str]]:
    """Return the run logs of a folder, oldest first, and descriptions of unreadable files.

    Raises:
        UserError: the folder does not exist, cannot be read, has no run logs, or has run logs that
            only a newer dpwa can read.
    """
    found, remarks = [], []
    for path in _paths(folder):
        try:
            log = _log_file(path)
        except OSError as error:
            remarks.append(f"{_shown(path)} cannot be read ({error.strerror})")
            continue
        if log is None:
            remarks.append(f"{_shown(path)} is not a run log")
        else:
            found.append(log)
    if not found:
        but = f". {'. '.join(remarks[:3])}" if remarks else ""
        raise UserError(
            f"{folder}: expected run logs, but found none. Nodes write run logs with "
            f"`run_log: {folder}`{but} [DPWA-E280]"
        )
    return sorted(found, key=lambda log: (log.began, log.path.name)), remarks


def split_runs(files: Sequence[ProcessLog]) -> list[list[ProcessLog]]:
    """Return the runs in a folder, oldest first.

    Files with the same run id belong to one run, even if the clocks of their hosts differ. A file
    without an id belongs to the previous run, unless that run had ended, or had a different list
    of nodes.

    Args:
        files: oldest first.
    """
    runs: list[list[ProcessLog]] = []
    for log in files:
        of_same = [run for run in runs if log.run and log.run in {other.run for other in run}]
        # A log without a digest of its list of nodes may belong to any run.
        near = [r for r in runs if len({r[0].cluster, log.cluster} - {""}) < 2][-1:]
        is_known = bool(log.run) and any(other.run for run in near for other in run)
        if not (of_same or is_known) and near and not _is_over(near[0], log.began):
            of_same = near
        if of_same:
            of_same[0].append(log)
        else:
            runs.append([log])
    return runs


def parsed(line: bytes) -> JsonObject | None:
    """Return a line of a run log, or `None` if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def time_of(line: JsonObject) -> float | None:
    """Return the time of a line, or `None` if the line has no valid time."""
    value = line.get("time")
    if isinstance(value, (int, float)) and 0 <= value <= LAST_TIME:
        return float(value)
    return None


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, with their line ends. Lines that are too long are split."""
    with open(path, "rb", buffering=1 << 20, opener=open_regular) as file:
        while line := file.readline(LONGEST_LINE):
            yield line


def _paths(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.suffix == SUFFIX and p.is_file())
    except FileNotFoundError:
        raise UserError(
            f"{folder}: expected a folder with run logs, but it does not exist [DPWA-E279]"
        ) from None
    except NotADirectoryError:
        raise UserError(
            f"{folder}: expected a folder with run logs, but it is a file [DPWA-E279]"
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder}: the folder cannot be read ({error.strerror}) [DPWA-E103]"
        ) from None


def _log_file(path: Path) -> ProcessLog | None:
    """Return the beginning and the end of a log, or `None` if the file is not a run log."""
    with open(path, "rb", opener=open_regular) as file:
        first = file.readline(LONGEST_LINE)
        nbytes = file.seek(0, 2)
        file.seek(max(0, nbytes - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
    told = _told(path, first)
    if told is None:
        return None
    began = told["time"]
    times = [float(found) for found in _LAST_TIME.findall(tail)]
    last = max([began, *(at for at in times[-50:] if at <= LAST_TIME)])
    end = parsed(tail.splitlines()[-1]) if tail else None
    ended = end is not None and end.get("type") == "end"
    problem = printable(str(end.get("problem") or "")) if end and ended else ""
    run, cluster = (v if isinstance(v := told.get(k), str) else "" for k in ("run", "cluster"))
    host = shown_name(found) if isinstance(found := told.get("host"), str) else ""
    own = path, nbytes, told["name"], told, host
    return ProcessLog(*own, began, last, ended, problem, run, cluster)


def _told(path: Path, first: bytes) -> JsonObject | None:
    """Return a run log's first line, or else data from its file name, or `None` for other files."""
    line = parsed(first)
    if line is None:
        return _told_by_name(path)
    version: Any = line.get("run_log")
    if line.get("type") != "start" or not isinstance(version, int) or version < 1:
        return None
    if version > RUN_LOG_VERSION:
        raise UserError(
            f"{path}: expected a run log of version {RUN_LOG_VERSION} (got {version}). "
            "Read this log with the newer dpwa that has written it [DPWA-E281]"
        )
    name, began = line.get("name"), time_of(line)
    if not isinstance(name, str) or not name or began is None:
        return _told_by_name(path)
    return {**line, "name": shown_name(name), "time": began}


def _told_by_name(path: Path) -> JsonObject | None:
    """Return the name, time and pid in a file's name, for a file with a damaged first line."""
    found = _TOLD_BY_NAME.fullmatch(path.stem)
    if found is None:
        return None
    name, stamp, pid = found.groups()
    try:
        began = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%S"))
    except ValueError:
        return None
    return {"name": shown_name(name), "time": float(began), "pid": int(pid)}


def shown_name(name: str) -> str:
    """Return a node's name in printable form, because other users may have written the file."""
    return printable(name[:LONGEST_NAME])


def _shown(path: Path) -> str:
    return printable(path.name)


def _is_over(run: Sequence[ProcessLog], at: float) -> bool:
    gap = GAP_AFTER_END_S if all(log.ended for log in run) else GAP_S
    return at - max(log.last for log in run) >= gap


Values = Callable[[], Sequence[float]]


class ThinnedRows:
    """A bounded number of rows, evenly over time, including the first and the newest row.

    Args:
        capacity: maximum number of rows, at least 4.
        width: number of values in a row. The first value is the time.
    """

    def __init__(self, capacity: int, width: int) -> None:
        self._rows = np.empty((capacity, width), np.float64)
        self._count = 0
        self._period = 0.0
        self._due = -np.inf
        self._newest: Values | None = None  # the last added row, if it is not among the rows

    def add_row(self, time: float, values: Values) -> None:
        """Add a row. Its time must not be before the time of the last row.

        Args:
            time: time of the row in seconds.
            values: returns the row. It is called only if the row is kept.
        """
        self._newest = values
        if time >= self._due:
            self._due = time + self._period
            self.keep_newest()

    def keep_newest(self) -> None:
        """Keep the last added row, regardless of its time."""
        if self._newest is None:
            return
        if self._count == len(self._rows):
            self._halve()
        self._rows[self._count] = self._newest()
        self._count += 1
        self._newest = None

    def rows(self) -> Floats:
        """Return a copy of the kept rows, shape `(rows, width)`."""
        self.keep_newest()
        rows: Floats = self._rows[: self._count].copy()
        return rows

    def _halve(self) -> None:
        kept = self._rows[: self._count : 2]
        self._count = len(kept)
        self._rows[: self._count] = kept
        span = float(self._rows[self._count - 1, 0] - self._rows[0, 0])
        self._period = max(self._period, span / self._count)


class ThinnedEvents:
    """A bounded number of events of each kind, and the number of all events.

    Args:
        capacity: maximum number of events of each kind, at least 2.

    Attributes:
        counts: number of all events, by kind.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: dict[str, list[RunEvent]] = {}
        self._strides: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def add_event(self, event: RunEvent) -> None:
        """Count an event. If there are many events of its kind, keep only every N-th event."""
        kind = event.kind
        kept = self._kept.setdefault(kind, [])
        if self.counts[kind] % self._strides.setdefault(kind, 1) == 0:
            if len(kept) == self._capacity:
                del kept[1::2]
                self._strides[kind] *= 2
            kept.append(event)
        self.counts[kind] += 1

    def events(self) -> tuple[RunEvent, ...]:
        """Return the kept events, in order of time."""
        found = [event for kept in self._kept.values() for event in kept]
        return tuple(sorted(found, key=lambda event: event.time))


MAX_SAMPLES = 4000  # kept samples of each node
MAX_SAMPLES_OF_ALL = 400_000  # kept samples of all nodes together
MIN_SAMPLES = 200  # kept samples of each node, even if there are many nodes
MAX_EVENTS = 400  # kept events of each node and kind
MAX_REMARKS = 20
LONGEST_TEXT = 300
PROGRESS_BYTES = 1 << 23

Progress = Callable[[int, int], None]

_PEERS = b'{"type":"peers"'
OF_PEERS = {
    "merges": "merges",
    "merged_bytes": "merged_bytes",
    "bytes_received": "received_bytes",
    "bytes_sent": "sent_bytes",
    "bytes_mapped": "mapped_bytes",
    "rounds": "rounds",
}


def read_run(
    folder: str | Path,
    number: int | None = None,
    progress: Progress | None = None,
    most_samples: int | None = None,
) -> Run:
    """Read the logs of all nodes of a run.

    Args:
        folder: folder of the run logs.
        number: number of the run, from 1, if the folder has several. `None`: the newest.
        progress: called from time to time with the number of bytes read, and the total.
        most_samples: maximum number of samples of each node, at least 4. `None`: some thousand, and
            fewer if there are many nodes.

    Raises:
        UserError: the folder or its files cannot be read, or there is no such run.
    """
    path = Path(folder)
    files, remarks = find_files(path)
    runs = split_runs(files)
    if number is not None and not 1 <= number <= len(runs):
        raise UserError(
            f"--run: expected a number from 1 to {len(runs)}, the runs in {path} (got {number})"
            " [DPWA-E282]"
        )
    chosen = len(runs) if number is None else number
    return _RunReader(runs[chosen - 1], remarks, progress, most_samples).read_run(
        path, runs, chosen
    )


class _RunReader:
    """Reads the files of one run."""

    def __init__(
        self,
        files: Sequence[ProcessLog],
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

    def read_run(self, folder: Path, runs: Sequence[Sequence[ProcessLog]], number: int) -> Run:
        of: dict[str, list[ProcessLog]] = {}
        for log in self._files:
            of.setdefault(log.name, []).append(log)
        fair = max(MIN_SAMPLES, min(MAX_SAMPLES, MAX_SAMPLES_OF_ALL // len(of)))
        room = fair if self._most_samples is None else max(4, self._most_samples)
        nodes = {}
        for name in sorted(of, key=natural_order):
            gathering = _Gathering(name, room)
            for log in of[name]:
                self._read(log, gathering)
            nodes[name] = gathering.done()
        self._progress(self._total, self._total)
        if len(self._remarks) > MAX_REMARKS:
            rest = len(self._remarks) - MAX_REMARKS
            self._remarks[MAX_REMARKS:] = [f"There are {rest} more remarks"]
        spans = tuple(_span(index, files) for index, files in enumerate(runs, 1))
        return Run(folder, nodes, spans, number, tuple(self._remarks), self._total)

    def _read(self, log: ProcessLog, gathering: _Gathering) -> None:
        gathering.begin_file(log)
        damaged = 0
        try:
            for line in lines_of(log.path):
                damaged += not gathering.take_line(line)
                self._count(len(line))
        except OSError as error:
            self._remarks.append(f"{log.path.name} cannot be read to its end ({error.strerror})")
        damaged += gathering.end_file()
        if damaged:
            lines = "1 damaged line was" if damaged == 1 else f"{damaged} damaged lines were"
            self._remarks.append(f"{lines} skipped in {log.path.name}")

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._done - self._told >= PROGRESS_BYTES:
            self._told = self._done
            self._progress(self._done, max(self._done, self._total))


class _Gathering:
    """Collects the contents of the logs of one node. The logs are read in order of time."""

    def __init__(self, name: str, room: int) -> None:
        self._name = name
        self._told: JsonObject = {}
        self._rows = ThinnedRows(room, 2 + len(NAMES))
        self._events = ThinnedEvents(MAX_EVENTS)
        self._processes: list[ProcessLog] = []
        self._before = dict.fromkeys(COUNTERS, 0.0)  # the totals of earlier processes
        self._samples = 0
        self._newest_time = -math.inf
        self._best = BestLoss(math.inf, math.nan, math.nan)
        self._exchanged: dict[str, Exchanged] = {}
        self._staleness: HistogramReport | None = None

    def begin_file(self, log: ProcessLog) -> None:
        """Begin to read a log."""
        self._told = log.told
        self._processes.append(log)
        self._peers: list[bytes] = []  # the last two, because the last line may be incomplete
        self._latest: JsonObject = {}

    def take_line(self, line: bytes) -> bool:
        """Read a line, and return whether the line is undamaged."""
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

    def end_file(self) -> int:
        """Finish a log, and return how many of its last lines of type `peers` are damaged."""
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
        """Return the collected contents of all logs."""
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
            staleness=self._staleness,
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
        self._rows.add_row(
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
            self._events.add_event(RunEvent(at, self._name, kind[:40], shown_name(about), told))

    def _take_peers(self, line: JsonObject) -> bool:
        peers = line.get("peers")
        if not isinstance(peers, dict):
            return False
        for name, told in peers.items():
            if isinstance(told, dict):
                exchanged = self._exchanged.setdefault(shown_name(name), Exchanged())
                for key, attribute in OF_PEERS.items():
                    known = getattr(exchanged, attribute) + int(_known(told.get(key)))
                    setattr(exchanged, attribute, known)
                exchanged.health = str(told.get("health") or "")[:40]
        if (bins := _bins(line.get("staleness"))) is not None:
            self._staleness = _together(self._staleness, bins)
        return True


def _span(number: int, files: Sequence[ProcessLog]) -> RunSpan:
    nodes = len({log.name for log in files})
    return RunSpan(number, files[0].began, max(log.last for log in files), nodes)


def _number(value: Any) -> float:
    """Return a figure of a line as a number, or NaN if it is unknown."""
    if value is None or value is True or value is False:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _known(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) else 0.0


def _bins(told: Any) -> HistogramReport | None:
    if not isinstance(told, dict):
        return None
    bounds, counts = told.get("bounds"), told.get("counts")
    if not isinstance(bounds, list) or not isinstance(counts, list):
        return None
    if len(counts) != len(bounds) + 1 or len(bounds) > 1000:
        return None
    return HistogramReport(
        tuple(map(_number, bounds)), tuple(int(_known(count)) for count in counts)
    )


def _together(one: HistogramReport | None, other: HistogramReport) -> HistogramReport:
    if one is None or one.bounds != other.bounds:
        return other
    counts = zip(one.counts, other.counts, strict=True)
    return HistogramReport(one.bounds, tuple(a + b for a, b in counts))


def natural_order(name: str) -> list[Any]:
    """Return a key for sorting names in natural order: w2 is before w10."""
    return [(int(p) if p.isdecimal() else math.inf, p) for p in _PARTS.split(name)]


_PARTS = re.compile(r"(\d{1,18})", re.ASCII)
