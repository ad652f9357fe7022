"""RunLog writes the record of a node into a file with lines of JSON. docs/watch.md has the schema.

One system call appends each line, so that a killed process leaves at most one incomplete line. A
separate thread writes, so that a slow disk delays no other thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpwa.config.methods import method
from dpwa.config.model import Config
from dpwa.config.schema import OF_REAL_RUNS
from dpwa.errors import UserError
from dpwa.files import open_regular
from dpwa.lifecycle import Closeable
from dpwa.node.report import NodeReport
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import NAMES
from dpwa.policy.topology import FileOptions
from dpwa.types import JsonObject

RUN_LOG_VERSION = 1
SUFFIX = ".jsonl"
PEERS_EVERY_S = 10.0
MAX_WAITING = 10_000  # lines that wait while the disk does not answer
CLOSE_TIMEOUT_S = 5.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_PEER_FIGURES = (
    "merges",
    "merged_bytes",
    "bytes_received",
    "bytes_sent",
    "bytes_mapped",
    "rounds",
    "staleness",
    "score",
    "health",
    "latency_ms",
    "bandwidth_mbps",
)


class RunLog(Closeable):
    """The run log of one process of a node.

    Args:
        folder: the folder of the run. It is created if it is missing.
        told: contents of the first line about the node: name, host, pid and more.

    Raises:
        UserError: the folder, or a file in it, cannot be created.

    Attributes:
        path: path of the log file.
    """

    def __init__(self, folder: str, told: JsonObject) -> None:
        began = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began))
        self.path = Path(folder) / f"{told['name']}-{stamp}-{os.getpid()}{SUFFIX}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise UserError(
                f"run_log: expected a folder that can be written to (got {folder}: "
                f"{error.strerror}) [DPWA-E247]"
            ) from None
        self._problem = ""
        self._peers_due = -math.inf
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._put({"type": "start", "run_log": RUN_LOG_VERSION, "time": began, **told})
        self._thread = threading.Thread(
            target=self._write_all, name=f"dpwa-run-log-{told['name']}", daemon=True
        )
        self._thread.start()

    def write_sample(
        self, at: float, values: Sequence[float], report: NodeReport, events: Iterable[RunEvent]
    ) -> None:
        """Log a sample, the events since the previous sample, and every 10 s the peers.

        Args:
            at: seconds since the epoch.
            values: the figures, in the order of `NAMES`.
            report: the report of the node.
            events: the new events, oldest first.
        """
        self._put({"type": "sample", "time": at, **dict(zip(NAMES, values, strict=True))})
        for event in events:
            told = {key: getattr(event, key) for key in ("time", "kind", "about", "text")}
            self._put({"type": "event", **told})
        if at >= self._peers_due:
            self._peers_due = at + PEERS_EVERY_S
            self.write_peers(at, report)

    def write_peers(self, at: float, report: NodeReport) -> None:
        """Log the totals of merges and traffic with each peer so far, and the histograms."""
        peers = {p.name: {name: getattr(p, name) for name in _PEER_FIGURES} for p in report.peers}
        counted = {name: vars(getattr(report.gossip, name)) for name in ("waits", "staleness")}
        self._put({"type": "peers", "time": at, **counted, "peers": peers})

    def take_problem(self) -> str:
        """Return the last write error since the previous call, or "" if no error occurred."""
        problem, self._problem = self._problem, ""
        return problem

    def write_end(self, problem: str) -> None:
        """Log that the node was closed. `problem` is the problem of its end, or ""."""
        self._put({"type": "end", "time": time.time(), "problem": problem})

    def close(self) -> None:
        """Write the queued lines, and stop. This is idempotent, and takes at most some seconds."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):  # the disk does not answer
                self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
                self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, line: JsonObject) -> None:
        text = json.dumps(plain(line), separators=(",", ":"), allow_nan=False)
        try:
            self._lines.put_nowait(text.encode() + b"\n")
        except queue.Full:
            self._problem = "the disk does not answer, so lines were dropped"

    def _write_all(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                try:
                    if os.write(self._file, line) < len(line):
                        self._problem = "the disk has stored only a part of a line"
                        os.write(self._file, b"\n")  # so that the next line is complete
                except OSError as error:
                    self._problem = error.strerror or str(error)
        finally:
            os.close(self._file)


def plain(value: Any) -> Any:
    """Return a value that JSON can express. NaN becomes null, and infinity becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def told_of_run(config: Config) -> JsonObject:
    return {
        "run": run_id(os.environ),
        "cluster": "" if config.is_open else cluster_id(config),
        "membership": "open" if config.is_open else "listed",
        "listed": len(config.nodes),
        "settings": settings_told(config),
    }


def run_id(environ: Mapping[str, str]) -> str:
    """Return the id that all processes of one run have in common, or "" if the run has no id.

    The id comes from `dpwa launch` or the user (`DPWA_RUN_ID`), or else from the launcher.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    return (
        environ.get("DPWA_RUN_ID", "").strip()
        or (f"slurm-{job}.{step}" if job and step else "")
        or environ.get("SKYPILOT_TASK_ID", "")
        or (elastic if _UUID.fullmatch(elastic) else "")  # other ids are often reused
    )


def cluster_id(config: Config) -> str:
    """Return a digest of the list of nodes, which tells runs apart without showing addresses."""
    listed = sorted(f"{node.name} {node.connect_endpoint}" for node in config.nodes)
    return hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()


def settings_told(config: Config) -> JsonObject:
    """Return the settings that a run log may contain, without addresses, files and keys.

    The options of plugins' methods are left out, because they may contain any of these.
    """
    hidden = {"nodes", *OF_REAL_RUNS}
    told = config.to_mapping().items()
    return {key: value for key, value in told if key not in hidden and _may_be_told(key)}


def _may_be_told(key: str) -> bool:
    """Return whether a run log may contain setting `key`: no options of plugins, and no files."""
    found = method(key)
    if found is None:
        return True
    is_own = found.described_by.__module__.partition(".")[0] == "dpwa"
    return is_own and not issubclass(found.options, FileOptions)
