import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.errors import ProtocolError
from dpwa.tables.channels import (
    ACKNOWLEDGE_AFTER_S,
    RESEND_AFTER_S,
    WINDOW,
    IncomingStream,
    Item,
    OutgoingStream,
)
from dpwa.wire import limits
from dpwa.wire.tables import TableHoldings, TableReady

HEADER = {"request": 0, "name": "w1", "incarnation": b"12345678", "view": b"87654321"}
MAX_VALUE_BYTES = 2**30


def ready(table):
    return Item(TableReady, {"table": table})


class Wire:
    """A stream whose messages may be lost."""

    def __init__(self, loss=0.0, seed=0):
        self.sent, self.taken = [], []
        self.outgoing = OutgoingStream(HEADER, self._send)
        self.incoming = IncomingStream()
        self._loss, self._rng = loss, random.Random(seed)

    def _send(self, message, payload):
        if self._rng.random() >= self._loss:
            self.sent.append((message, payload))

    def deliver(self, now):
        """Take what has come in; tell the other side, if that is not lost, too."""
        sent, self.sent = self.sent, []
        for message, payload in sent:
            if self.incoming.is_next(message.number, now):
                data = self.incoming.accept_message(message, payload or b"", MAX_VALUE_BYTES)
                if data is not None:
                    self.taken.append((message, bytes(data)))
        if self._rng.random() >= self._loss:
            self.outgoing.seen(self.incoming.last, now)
            if self.incoming.wants:
                self.incoming.wants = False
                self.outgoing.resend(now)


@given(
    sizes=st.lists(st.integers(0, 3 * limits.MAX_PUSH_BYTES), max_size=5),
    loss=st.floats(0, 0.6),
    seed=st.integers(0, 2**32),
)
def test_all_comes_in_order_once_whatever_is_lost(sizes, loss, seed):
    wire, now = Wire(loss, seed), 0.0
    wire.outgoing.queue_items(Item(TableHoldings, {}, bytes([size % 251]) * size) for size in sizes)
    while wire.outgoing.is_busy or not now:
        wire.outgoing.pump(now)
        wire.deliver(now)
        now += RESEND_AFTER_S
        assert now < 1000
    assert [data for _, data in wire.taken] == [bytes([size % 251]) * size for size in sizes]


def test_only_so_much_is_under_way_and_nothing_is_taken_before():
    wire, asked = Wire(), []

    def items():
        for table in range(2 * WINDOW):
            asked.append(table)
            yield ready(table)

    wire.outgoing.queue_items(items())
    wire.outgoing.pump(0.0)
    assert len(wire.sent) == len(asked) == WINDOW
    wire.deliver(0.1)
    wire.outgoing.pump(0.1)
    assert [message.table for message, _ in wire.sent] == list(range(WINDOW, 2 * WINDOW))


def test_what_is_missing_is_asked_for_once_and_not_what_cannot_be_taken_yet():
    incoming = IncomingStream()
    wants = []

    def come(*numbers):
        for number in numbers:
            incoming.is_next(number, 0.0)
            wants.append(incoming.wants)
            incoming.wants = False
        found = wants.copy()
        wants.clear()
        return found

    assert come(2, 3, 4) == [True, False, False]
    assert come(1, 2, 3, 4, 1, 2) == [False] * 6  # has come, and was not taken
    assert incoming.is_next(1, 0.0)
    incoming.accept_message(TableReady(**HEADER, table=0, number=1), b"", 0)
    assert come(3, 4) == [True, False]
    assert come(1, 2, 3) == [False] * 3


def test_many_messages_are_acknowledged_together_and_soon():
    incoming = IncomingStream()
    assert not incoming.must_acknowledge(0.0)
    incoming.is_next(1, 1.0)
    assert not incoming.must_acknowledge(1.0)
    assert incoming.must_acknowledge(1.0 + ACKNOWLEDGE_AFTER_S)
    for number in range(2, WINDOW // 2 + 1):
        assert not incoming.must_acknowledge(1.0)
        incoming.is_next(number, 1.0)
    assert incoming.must_acknowledge(1.0)  # before the sender's window is full


def test_a_gap_is_reported_at_once():
    incoming = IncomingStream()
    incoming.is_next(2, 1.0)
    assert incoming.must_acknowledge(1.0)


def test_silence_is_counted_from_when_there_was_something_to_see():
    wire = Wire()
    wire.outgoing.pump(5.0)
    assert wire.outgoing.stalled_s(100.0) == 0.0
    wire.outgoing.queue_items([ready(1), ready(2)])
    wire.outgoing.pump(100.0)
    assert wire.outgoing.stalled_s(103.0) == 3.0
    wire.outgoing.seen(1, 103.0)
    assert wire.outgoing.stalled_s(104.0) == 1.0
    wire.outgoing.seen(2, 104.0)
    assert wire.outgoing.stalled_s(200.0) == 0.0


def test_what_is_not_seen_is_sent_again_less_and_less_often():
    wire, times = Wire(), []
    wire.outgoing.queue_items([ready(1)])
    for now in (eighth / 8 for eighth in range(40)):
        wire.sent.clear()
        wire.outgoing.pump(now)
        times += [now] * len(wire.sent)
    assert times == [0, 0.25, 0.75, 1.75, 2.75, 3.75, 4.75]


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 10, b"12345"), (4, 10, b"12345")],
        [(0, 10, b"12345"), (6, 10, b"1234")],
        [(5, 10, b"12345")],
        [(0, 4, b"12345")],
        [(0, 1001, b"12345")],
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(pieces):
    incoming = IncomingStream()
    with pytest.raises(ProtocolError, match="TableHoldings: expected a piece from byte"):  # noqa: PT012
        for number, (start, nbytes, data) in enumerate(pieces, start=1):
            message = TableHoldings(**HEADER, number=number, start=start, nbytes=nbytes)
            assert incoming.is_next(number, 0.0)
            incoming.accept_message(message, data, 1000)
    assert incoming.last == len(pieces)  # it is over with, and does not come again


def test_a_piece_for_which_there_is_no_memory_comes_again():
    class Full(bytearray):
        def __iadd__(self, other):
            raise MemoryError

    def take(number, start, data):
        message = TableHoldings(**HEADER, number=number, start=start, nbytes=9)
        assert incoming.is_next(number, 0.0)
        return incoming.accept_message(message, data, MAX_VALUE_BYTES)

    incoming = IncomingStream()
    take(1, 0, b"123")
    incoming._data = Full(incoming._data)
    with pytest.raises(MemoryError):
        take(2, 3, b"456")
    assert incoming.last == 1
    incoming._data = bytearray(incoming._data)
    assert take(2, 3, b"456") is None
    assert bytes(take(3, 6, b"789")) == b"123456789"
