"""All records of all nodes, as the parent hears them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from dpwa.demo.records import Phase, Record


class History:
    """Records by node and phase, in the order they came."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._records: dict[str, list[Record]] = {name: [] for name in names}

    def add(self, name: str, record: Record) -> None:
        """Keep one more record of this node."""
        self._records[name].append(record)

    def of(self, name: str, phase: Phase) -> list[Record]:
        """Return the records of one node in one phase."""
        return [record for record in self._records[name] if record.phase == phase]

    def last(self, name: str) -> Record | None:
        """Return the newest record of this node, if it has written any."""
        return self._records[name][-1] if self._records[name] else None


def parse_record(line: str) -> Record | None:
    """Read a line of a worker's output; `None` for a line that is not a record."""
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
