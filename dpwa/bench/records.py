"""What a process of a benchmark tells its parent: one JSON object per line."""

from __future__ import annotations

from pydantic import TypeAdapter

from dpwa.types import StrictModel

# Seconds of each figure that a process has timed in one repetition of a measure: none where others
# do the timing. `None` when its round merged nothing.
Sample = dict[str, float] | None


class Progress(StrictModel):
    """The first process has come so far."""

    repetitions_done: int


class SessionReport(StrictModel):
    """All that a process has timed: of each measure, one sample for each repetition."""

    samples: dict[str, list[Sample]]


_RECORD: TypeAdapter[Progress | SessionReport] = TypeAdapter(Progress | SessionReport)


def parse_record(line: str) -> Progress | SessionReport:
    """Read a line of a process of `dpwa bench`.

    Raises:
        pydantic.ValidationError: it is no record.
    """
    return _RECORD.validate_json(line)
