"""Records of a worker's progress on standard output, one JSON object per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from dpwa.types import StrictModel

Phase = Literal["alone", "meeting", "gossip", "finish"]


class Record(StrictModel):
    """The progress of one node at one moment.

    Attributes:
        phase: training alone, waiting for the others, training with gossip, or `finish`.
        step: training steps so far in this phase, or in the gossip phase for `finish`.
        loss: mean cross-entropy (nats) on the node's shard since the last record.
        accuracy: share of the test set that is classified correctly, 0 to 1.
        merges: number of merges in training so far.
        consensus_distance: distance to the peers' parameters after `finish`.
    """

    phase: Phase
    step: int
    loss: float | None
    accuracy: float
    merges: int = 0
    consensus_distance: float | None = None


class History:
    """All records of all nodes, in the order of their arrival at the parent process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._records: dict[str, list[Record]] = {name: [] for name in names}

    def add_record(self, name: str, record: Record) -> None:
        self._records[name].append(record)

    def records_of(self, name: str, phase: Phase) -> list[Record]:
        return [record for record in self._records[name] if record.phase == phase]


def parse_record(line: str) -> Record | None:
    """Return the record in a line of a worker's output, or `None` if it has none."""
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
