"""The contents of the logs of one run, for each node, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpwa.node.report import HistogramReport
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import INDEX
from dpwa.observe.history import Floats
from dpwa.types import JsonObject


@dataclass(frozen=True)
class ProcessLog:
    """The log of one process of a node.

    Attributes:
        path: path of the file.
        nbytes: size of the file in bytes.
        name: name of the node.
        told: contents of the first line about the node, or of the file name if that line is
            damaged.
        host: host of the process. Empty if the log does not contain the host.
        began: time when the process began, in seconds since the epoch.
        last: time of the last line, in seconds since the epoch.
        ended: whether the last line is an `end` line.
        problem: the problem in the `end` line, or "".
        run: id of the run. Empty if the run has none.
        cluster: digest of the list of nodes. Empty if the nodes are not listed.
    """

    path: Path
    nbytes: int
    name: str
    told: JsonObject
    host: str
    began: float
    last: float
    ended: bool
    problem: str = ""
    run: str = ""
    cluster: str = ""


@dataclass
class Exchanged:
    """A node's merges of one peer, and its traffic with the peer, over all processes of the node.

    Attributes:
        merges: number of merges.
        merged_bytes: bytes of merged snapshots, mapped or received.
        received_bytes: bytes of payload from the peer.
        sent_bytes: bytes of payload to the peer.
        mapped_bytes: bytes read from the memory of the peer.
        rounds: rounds in which the node averaged gradients with the peer (`together`).
        health: health of the peer in the node's last report. Empty if it is unknown.
    """

    merges: int = 0
    merged_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    mapped_bytes: int = 0
    rounds: int = 0
    health: str = ""


@dataclass(frozen=True)
class BestLoss:
    """The lowest loss in all samples of a node.

    Attributes:
        loss: the lowest loss.
        time: time of the sample, in seconds since the epoch.
        steps: number of steps that the node had taken at this time.
    """

    loss: float
    time: float
    steps: float


@dataclass(frozen=True)
class NodeLog:
    """The contents of the files of one node.

    Attributes:
        name: name of the node, in printable form.
        told: the contents of the first line of the newest file.
        processes: in order of time. There are several if the node was restarted.
        rows: samples, shape `(samples, 1 + len(FIGURES))`, time first. After a restart, counters
            continue from the previous process. An unknown figure is NaN.
        process: index in `processes` of each sample, shape `(samples,)`.
        sample_count: number of samples in the files. `rows` has fewer if the samples were thinned.
        best: lowest loss, or `None` if no loss is known.
        events: oldest first, at most some hundred of each kind.
        event_counts: number of all events, by kind.
        exchanged: merges and traffic with each peer, by its name.
        staleness: histogram of the merged snapshots, in updates. `None` if it is unknown.
    """

    name: str
    told: JsonObject
    processes: tuple[ProcessLog, ...]
    rows: Floats
    process: NDArray[np.int64]
    sample_count: int = 0
    best: BestLoss | None = None
    events: tuple[RunEvent, ...] = ()
    event_counts: Mapping[str, int] = field(default_factory=dict)
    exchanged: Mapping[str, Exchanged] = field(default_factory=dict)
    staleness: HistogramReport | None = None

    @property
    def times(self) -> Floats:
        """Times of the samples, in seconds since the epoch, shape `(samples,)`."""
        return self.rows[:, 0]

    def figure(self, name: str) -> Floats:
        """Return the samples of one of `FIGURES`, shape `(samples,)`."""
        return self.rows[:, 1 + INDEX[name]]

    def total(self, name: str) -> float:
        """Return the last value of a counter, or 0 if it is unknown."""
        values = self.figure(name)
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else 0.0

    @property
    def began(self) -> float:
        """Time when the node's first process began, in seconds since the epoch."""
        return self.processes[0].began

    @property
    def last(self) -> float:
        """Time of the node's last line, in seconds since the epoch."""
        return max(process.last for process in self.processes)

    @property
    def ended(self) -> bool:
        """Whether the log of the node's newest process has an `end` line."""
        return self.processes[-1].ended

    @property
    def is_thinned(self) -> bool:
        """Whether samples were thinned, so that `rows` has fewer samples than the files."""
        return self.sample_count > len(self.rows)


@dataclass(frozen=True)
class RunSpan:
    """The time span of one run, in a folder with the logs of several runs.

    Attributes:
        number: number of the run. The oldest has number 1.
        began: time when the run began, in seconds since the epoch.
        last: time of the run's last line, in seconds since the epoch.
        nodes: number of nodes.
    """

    number: int
    began: float
    last: float
    nodes: int


@dataclass(frozen=True)
class Run:
    """The logs of one run.

    Attributes:
        folder: folder of the logs.
        nodes: the log of each node, by name, in the order of the names.
        spans: all runs in the folder, oldest first.
        number: number of this run among them.
        remarks: descriptions of the parts that could not be read.
        nbytes: size of the run's files in bytes.
    """

    folder: Path
    nodes: Mapping[str, NodeLog]
    spans: tuple[RunSpan, ...]
    number: int
    remarks: tuple[str, ...] = ()
    nbytes: int = 0

    @property
    def began(self) -> float:
        """Time when the first node began, in seconds since the epoch."""
        return min(node.began for node in self.nodes.values())

    @property
    def last(self) -> float:
        """Time of the last line of any node, in seconds since the epoch."""
        return max(node.last for node in self.nodes.values())

    @property
    def seconds(self) -> float:
        """Length of the run in seconds, as far as the logs show."""
        return self.last - self.began
