"""The files of a run directory: which there are, which belong to one run, and their lines."""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpwa.errors import UserError
from dpwa.observe.run_log import RUN_LOG_VERSION, SUFFIX
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

LONGEST_LINE = 1 << 24  # bytes; what is longer is no line of a run log
LAST_TIME = 4e9  # seconds since the epoch: later ones are damage
TAIL_BYTES = 1 << 18
LONGEST_NAME = 64  # characters

# From the end of one run to the beginning of the next in the same folder.
GAP_S = 60.0
GAP_AFTER_END_S = 10.0  # where all nodes have ended well

_TOLD_BY_NAME = re.compile(r"(.+)-(\d{8}T\d{6})-(\d{1,9})")
_LAST_TIME = re.compile(rb'"time":(\d+(?:\.\d+)?)')


@dataclass(frozen=True)
class LogFile:
    """The log of one process of a node.

    Attributes:
        path: of the file.
        nbytes: its size.
        name: of the node.
        told: what its first line says of the node; of its file name, if that line is damaged.
        began: when the process began, in seconds since the epoch.
        last: when it wrote its last line.
        ended: whether that is the line that stands for an end.
        problem: what that line says was not good about it; empty: nothing.
    """

    path: Path
    nbytes: int
    name: str
    told: JsonObject
    began: float
    last: float
    ended: bool
    problem: str = ""


def find_files(folder: Path) -> tuple[list[LogFile], list[str]]:
    """Return the run logs of a folder by their beginning, and what was passed over, in words.

    Raises:
        UserError: there is no such folder, it cannot be read, it has no run logs, or some that
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
            remarks.append(f"{_shown(path)} is no run log")
        else:
            found.append(log)
    if not found:
        but = f"; {'; '.join(remarks[:3])}" if remarks else ""
        raise UserError(
            f"{folder}: no run logs; expected files that nodes write with `run_log: {folder}`{but}"
        )
    return sorted(found, key=lambda log: (log.began, log.path.name)), remarks


def split_runs(files: Sequence[LogFile]) -> list[list[LogFile]]:
    """Return the runs in a folder, oldest first: files of a run begin before all others had ended.

    Args:
        files: by their beginning.
    """
    runs: list[list[LogFile]] = []
    for log in files:
        if runs and not _is_over(runs[-1], log.began):
            runs[-1].append(log)
        else:
            runs.append([log])
    return runs


def parsed(line: bytes) -> JsonObject | None:
    """Return a line of a run log; `None` if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def time_of(line: JsonObject) -> float | None:
    """Return when a line was written; `None` if it does not say so."""
    value = line.get("time")
    if isinstance(value, (int, float)) and 0 <= value <= LAST_TIME:
        return float(value)
    return None


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; what is too long comes in pieces."""
    with path.open("rb", buffering=1 << 20) as file:
        while line := file.readline(LONGEST_LINE):
            yield line


def _paths(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.suffix == SUFFIX and p.is_file())
    except FileNotFoundError:
        raise UserError(f"{folder}: expected a folder with run logs; it does not exist") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: expected a folder with run logs; it is a file") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None


def _log_file(path: Path) -> LogFile | None:
    """Look at the beginning and the end of a file; `None`: it is no run log."""
    with path.open("rb") as file:
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
    return LogFile(path, nbytes, told["name"], told, began, last, ended, problem)


def _told(path: Path, first: bytes) -> JsonObject | None:
    """Return what a file says of its node, with a name and a time."""
    line = parsed(first)
    if line is None:
        return _told_by_name(path)
    version: Any = line.get("run_log")
    if line.get("type") != "start" or not isinstance(version, int) or version < 1:
        return None
    if version > RUN_LOG_VERSION:
        raise UserError(
            f"{path}: expected a run log of version {RUN_LOG_VERSION} (got {version}): "
            "a newer dpwa has written it, and can read it"
        )
    name, began = line.get("name"), time_of(line)
    if not isinstance(name, str) or not name or began is None:
        return _told_by_name(path)
    return {**line, "name": shown_name(name), "time": began}


def _told_by_name(path: Path) -> JsonObject | None:
    """Return what the name of a file says, where its first line is damaged."""
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
    """Return the name of a node as it can be shown: it stands in a file that anybody may write."""
    return printable(name[:LONGEST_NAME])


def _shown(path: Path) -> str:
    return printable(path.name)


def _is_over(run: Sequence[LogFile], at: float) -> bool:
    gap = GAP_AFTER_END_S if all(log.ended for log in run) else GAP_S
    return at - max(log.last for log in run) >= gap
