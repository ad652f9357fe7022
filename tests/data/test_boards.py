"""Boards: a record is read as it was written, or not at all."""

import numpy as np
import pytest

from dpwa.data.shared_records import (
    _SEQUENCE,
    _SLOT,
    BOARD_BYTES,
    MAX_RECORD_BYTES,
    SLOT_BYTES,
    VIEW_BYTES,
    BoardReader,
    BoardWriter,
    Posted,
)

VIEW = b"v" * VIEW_BYTES
POSTED = Posted(7, VIEW, b"a record of some bytes")
RECORD_BYTES = 64 + len(POSTED.record)


@pytest.fixture
def board():
    return np.zeros(BOARD_BYTES, np.uint8)


def read(board, slot=0):
    return BoardReader(board).read_slot(slot)


@pytest.mark.parametrize("slot", [0, 1])
def test_what_was_posted_is_read_until_something_else_is(board, slot):
    writer, reader = BoardWriter(board), BoardReader(board)
    assert reader.read_slot(slot) is None
    for number, record in enumerate((b"", b"short", bytes(MAX_RECORD_BYTES), b"x" * 100)):
        posted = Posted(number, VIEW, record)
        writer.post(slot, posted)
        assert [reader.read_slot(slot), reader.read_slot(slot)] == [posted, posted]
        assert reader.read_slot(1 - slot) is None


def test_a_record_of_which_any_byte_is_still_the_one_before_is_not_read(board):
    """As other cores may see it: the new sequence number, and old bytes behind it."""
    BoardWriter(board).post(0, POSTED)
    fields = [*range(8, _SLOT.size), *range(64, RECORD_BYTES)]
    for place in fields:
        board[place] ^= 1
        assert read(board) is None, place
        board[place] ^= 1
    assert read(board) == POSTED


def test_a_record_that_is_half_of_one_and_half_of_the_next_is_not_read(board):
    writer = BoardWriter(board)
    writer.post(0, POSTED)
    before = board[:SLOT_BYTES].copy()
    after = Posted(8, b"w" * VIEW_BYTES, POSTED.record[::-1])
    writer.post(0, after)
    whole = board[:SLOT_BYTES].copy()
    for place in range(9, RECORD_BYTES):
        board[:SLOT_BYTES] = whole
        board[place:RECORD_BYTES] = before[place:RECORD_BYTES]
        is_new = np.array_equal(board[:RECORD_BYTES], whole[:RECORD_BYTES])
        assert read(board) == (after if is_new else None), place


def test_the_record_of_another_sequence_number_is_not_read(board):
    BoardWriter(board).post(0, POSTED)
    for sequence in (0, 1, 3, 4):
        _SEQUENCE.pack_into(board.data, 0, sequence)
        assert read(board) is None, sequence
    _SEQUENCE.pack_into(board.data, 0, 2)
    assert read(board) == POSTED
