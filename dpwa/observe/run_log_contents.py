"""The contents of the run logs of one run, per node, in bounded memory."""

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
        path: of the file.
        nbytes: its size.
        name: of the node.
        told: contents of its first line about the node, or of its file name if that line is
            damaged.
        host: where it ran. Empty if its log does not have it.
        began: when the process began, in seconds since the epoch.
        last: when it wrote its last line.
        ended: whether that is an end line.
        problem: the problem in that line, or "".
        run: the id of the run. Empty if it has none.
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
    """A node's merges from a different node, and their traffic, in all of its processes.

    Attributes:
        merges: number of merges.
        merged_bytes: of snapshots, mapped or received.
        received_bytes: of payload from it.
        sent_bytes: of payload to it.
        mapped_bytes: bytes read from its memory.
        rounds: of gradients that were averaged with it (`together`).
        health: of the other at the end, in this node's opinion. Empty if it is not known.
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
    """The lowest loss of a node, of all its samples.

    Attributes:
        loss: the loss.
        time: when, in seconds since the epoch.
        steps: the number of steps that the node had taken until then.
    """

    loss: float
    time: float
    steps: float


@dataclass(frozen=True)
class NodeLog:
    """The contents of the files of one node.

    Attributes:
        name: of the node, in printable form.
        told: the contents of the first line of its newest file.
        processes: in order of time. If there are several, it was restarted.
        rows: samples, shape `(samples, 1 + len(FIGURES))`, time first. Counters continue those of
            the process before. An unknown figure is NaN.
        process: of each sample, shape `(samples,)`: its index in `processes`.
        sample_count: number of samples in the files. If they were thinned, there are fewer rows.
        best: lowest loss, or `None` if no loss is known.
        events: oldest first, at most some hundred of each kind.
        event_counts: of all events, by kind.
        exchanged: by name of the other node.
        staleness: of the merged snapshots, in updates. `None` if it is not known.
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
        """When the samples were taken, in seconds since the epoch, shape `(samples,)`."""
        return self.rows[:, 0]

    def figure(self, name: str) -> Floats:
        """Return the samples of one of `FIGURES`, shape `(samples,)`."""
        return self.rows[:, 1 + INDEX[name]]

    def total(self, name: str) -> float:
        """Return the last value of a counter, or 0 if it is not known."""
        values = self.figure(name)
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else 0.0

    @property
    def began(self) -> float:
        """When its first process began."""
        return self.processes[0].began

    @property
    def last(self) -> float:
        """When its last line was written."""
        return max(process.last for process in self.processes)

    @property
    def ended(self) -> bool:
        """Whether its newest process was closed."""
        return self.processes[-1].ended

    @property
    def is_thinned(self) -> bool:
        """Whether there are more samples than rows."""
        return self.sample_count > len(self.rows)


@dataclass(frozen=True)
class RunSpan:
    """A run in a folder that has several.

    Attributes:
        number: from 1, the oldest.
        began: in seconds since the epoch.
        last: when its last line was written.
        nodes: number of nodes.
    """

    number: int
    began: float
    last: float
    nodes: int


@dataclass(frozen=True)
class Run:
    """The contents of a run directory about one run.

    Attributes:
        folder: where the logs are.
        nodes: by name, in the order of their names.
        spans: of all runs in the folder, oldest first.
        number: of this one among them.
        remarks: descriptions of the parts that could not be read.
        nbytes: size of its files.
    """

    folder: Path
    nodes: Mapping[str, NodeLog]
    spans: tuple[RunSpan, ...]
    number: int
    remarks: tuple[str, ...] = ()
    nbytes: int = 0

    @property
    def began(self) -> float:
        """When its first node began, in seconds since the epoch."""
        return min(node.began for node in self.nodes.values())

    @property
    def last(self) -> float:
        """When the last line of any node was written."""
        return max(node.last for node in self.nodes.values())

    @property
    def seconds(self) -> float:
        """Seconds of the run, as far as the logs show."""
        return self.last - self.began
