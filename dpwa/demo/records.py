"""Records of a worker's progress, one JSON object a line, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from dpwa.types import StrictModel

Phase = Literal["alone", "meeting", "gossip", "finish"]


class Record(StrictModel):
    """The state of one node at one moment.

    Attributes:
        phase: training alone, waiting for the others, training with gossip, or `finish`.
        step: training steps done in this phase (in `finish`: in the gossip phase).
        loss: mean cross-entropy (nats) on the node's own shard since the record before.
        accuracy: share of the test set that is classified correctly, 0 to 1.
        merges: number of merges of a peer's parameters in training so far.
        consensus_distance: after `finish`, the distance of the peers' parameters from its own.
    """

    phase: Phase
    step: int
    loss: float | None
    accuracy: float
    merges: int = 0
    consensus_distance: float | None = None


class History:
    """All records of all nodes, in the order in which they arrived at the parent."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._records: dict[str, list[Record]] = {name: [] for name in names}

    def add_record(self, name: str, record: Record) -> None:
        self._records[name].append(record)

    def records_of(self, name: str, phase: Phase) -> list[Record]:
        return [record for record in self._records[name] if record.phase == phase]


def parse_record(line: str) -> Record | None:
    """Read a line of a worker's output, or return `None` if it is not a record."""
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
