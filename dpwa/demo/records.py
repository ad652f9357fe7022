"""What a worker tells of its progress: one JSON object a line, on disk and to its parent."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from dpwa.files import open_regular
from dpwa.lifecycle import Closeable
from dpwa.types import StrictModel

if TYPE_CHECKING:
    from dpwa.adapters.merge import Merge

MEET_TIMEOUT_S = 15.0  # at most so long is the phase "meeting"

Phase = Literal["alone", "meeting", "gossip", "mixing"]


class Record(StrictModel):
    """The state of one node at one moment.

    Attributes:
        phase: training alone, meeting (waiting for the others), training with gossip, or mixing
            (`finish`, after the last training step).
        step: training steps done in this phase (while mixing: in the gossip phase).
        seconds: time since this phase began.
        loss: mean cross-entropy (nats) on the node's own shard since the record before.
        accuracy: share of the test set that is classified correctly, 0 to 1.
        merges: how many times a peer's parameters were merged in training so far.
        peer: the last peer merged since the record before, and with it
        factor: how much of it was taken,
        staleness: how many updates it was behind this node,
        consensus_distance: how far its parameters were from this node's.
    """

    phase: Phase
    step: int
    seconds: float
    loss: float | None
    accuracy: float
    merges: int = 0
    peer: str | None = None
    factor: float | None = None
    staleness: float | None = None
    consensus_distance: float | None = None


class Logbook(Closeable):
    """Gathers what happens between two records; writes each to a file and to standard output."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", opener=open_regular)  # noqa: SIM115
        self._losses: list[float] = []
        self._last_merge: Merge | None = None
        self._merges = 0
        self.begin("alone")

    def begin(self, phase: Phase) -> None:
        """Start a phase: its records carry its name and count its seconds from now."""
        self._phase = phase
        self._began = time.monotonic()

    def trained(self, loss: float) -> None:
        self._losses.append(loss)

    def merged(self, merge: Merge | None) -> None:
        if merge is not None:
            self._merges += 1
            self._last_merge = merge

    def write(self, step: int, accuracy: float) -> None:
        """Write a record of everything noted since the one before."""
        line = self._record(step, accuracy).model_dump_json()
        self._losses.clear()
        self._last_merge = None
        for stream in (self._file, sys.stdout):
            stream.write(line + "\n")
            stream.flush()

    def _record(self, step: int, accuracy: float) -> Record:
        merge = self._last_merge
        return Record(
            phase=self._phase,
            step=step,
            seconds=round(time.monotonic() - self._began, 3),
            loss=sum(self._losses) / len(self._losses) if self._losses else None,
            accuracy=accuracy,
            merges=self._merges,
            peer=merge.peer if merge else None,
            factor=merge.factor if merge else None,
            staleness=merge.staleness if merge else None,
            consensus_distance=merge.consensus_distance if merge else None,
        )

    def close(self) -> None:
        self._file.close()


class History:
    """All records of all nodes, in the order they came to the parent."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._records: dict[str, list[Record]] = {name: [] for name in names}

    def add(self, name: str, record: Record) -> None:
        self._records[name].append(record)

    def of(self, name: str, phase: Phase) -> list[Record]:
        return [record for record in self._records[name] if record.phase == phase]


def parse_record(line: str) -> Record | None:
    """Read a line of a worker's output; `None` for a line that is not a record."""
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
