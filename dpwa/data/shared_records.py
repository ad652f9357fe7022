"""Boards: shared memory in which one process writes small records for other processes.

A board has a few slots. A slot holds one record, with the collective's number and the view:

    0    sequence number, odd while the slot is written
    8    number, view, checksum and length of the record
    64   the record

Another core may see the changes of a slot's bytes in a different order. So the sequence number is
not enough, and a checksum covers all bytes of the slot.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dpwa.data.checksum import checksum
from dpwa.data.segments import ByteArray

SLOTS = 2
SLOT_BYTES = 16 * 1024
BOARD_BYTES = SLOTS * SLOT_BYTES
VIEW_BYTES = 8

_SEQUENCE = struct.Struct("<Q")
_SLOT = struct.Struct(f"<QQ{VIEW_BYTES}sQI")
_RECORD_AT = 64
MAX_RECORD_BYTES = SLOT_BYTES - _RECORD_AT


@dataclass(frozen=True)
class Posted:
    number: int  # the number of its collective
    view: bytes
    record: bytes


class BoardWriter:
    """The board of this process, in memory of `BOARD_BYTES` that other processes can map."""

    def __init__(self, memory: ByteArray) -> None:
        self._memory = memory.data
        self._sequences = [0] * SLOTS

    def post(self, slot: int, posted: Posted) -> None:
        """Replace the record in a slot of the board. Only one thread at a time may call this."""
        start = slot * SLOT_BYTES
        self._sequences[slot] += 2
        sequence, record = self._sequences[slot], posted.record
        total = _total(sequence, posted)
        fields = posted.number, posted.view, total, len(record)
        _SLOT.pack_into(self._memory, start, sequence - 1, *fields)
        first = start + _RECORD_AT
        self._memory[first : first + len(record)] = record
        _SEQUENCE.pack_into(self._memory, start, sequence)


class BoardReader:
    """The board of a different process on this host."""

    def __init__(self, memory: ByteArray) -> None:
        self._memory = memory.data
        self._known: list[tuple[int, Posted] | None] = [None] * SLOTS

    def read_slot(self, slot: int) -> Posted | None:
        """Return the record in a slot, or `None` if the slot is empty or being written."""
        start = slot * SLOT_BYTES
        header = _SLOT.unpack_from(self._memory, start)
        sequence, number, view, total, nbytes = header
        known = self._known[slot]
        if known is not None and known[0] == sequence:
            return known[1]
        if sequence == 0 or sequence % 2 or nbytes > MAX_RECORD_BYTES:
            return None
        first = start + _RECORD_AT
        record = bytes(self._memory[first : first + nbytes])
        posted = Posted(number, view, record)
        if _SLOT.unpack_from(self._memory, start) != header or _total(sequence, posted) != total:
            return None
        self._known[slot] = sequence, posted
        return posted


def _total(sequence: int, posted: Posted) -> int:
    header = _SLOT.pack(sequence, posted.number, posted.view, 0, len(posted.record))
    return checksum(header + posted.record)
