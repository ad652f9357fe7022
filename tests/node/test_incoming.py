"""A snapshot on its way: two threads, and whoever is first, the parts come in order and whole."""

import random
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.times import at_most

from dpwa.clock import Deadline, SystemClock
from dpwa.data.codecs import codec
from dpwa.data.delta_base import NOTHING, DeltaBase
from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import ProtocolError
from dpwa.node.incoming import QUEUED_PIECES, BrokenFetchError, Incoming
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Announced
from dpwa.wire.messages import SnapshotHeader

PIECE_BYTES = 64
TOKEN = 7


def is_finite(values, dtype):
    return bool(np.isfinite(values.view(dtype)).all())


class Stream:
    """An `Incoming` of some pieces, with what a peer would send of random values."""

    def __init__(self, count, codec_name="none", held=None, shard=slice(None)):
        self.data = np.random.default_rng(count).standard_normal(count * PIECE_BYTES // 4)
        self.data = self.data.astype(np.float32).view(np.uint8)
        layout = Layout((TensorSpec("weight", "float32", (len(self.data) // 4,), 4),))
        self.pieces = layout.pieces(len(self.data), PIECE_BYTES)[shard]
        self.codec, self.held = codec(codec_name), held
        header = SnapshotHeader(
            request=1,
            version=1,
            clock=1.0,
            loss=None,
            is_finite=True,
            nbytes=len(self.data),
            codec=codec_name,
            token=0 if held is None else TOKEN,
            news=(),
        )
        self.buffer = np.zeros(len(self.data), np.uint8)
        self.incoming = Incoming(
            Announced(header, self.pieces), self.codec, self.buffer, held, is_finite
        )

    def payload(self, index):
        piece = self.pieces[index]
        nothing = np.zeros(piece.nbytes, np.uint8) if self.codec.is_delta else None
        return self.codec.encode(self.data[piece.start : piece.stop], piece.dtype, nothing)

    def add(self, first=0, stop=None):
        for index in range(first, len(self.pieces) if stop is None else stop):
            self.incoming.add(self.pieces[index], memoryview(self.payload(index)))

    def parts(self, timeout_s=5.0):
        return self.incoming.parts(Deadline(SystemClock(), timeout_s))


def joined(parts):
    """Return the bytes of parts, of which each must begin where the one before has ended."""
    found = bytearray()
    for start, part in parts:
        assert start == len(found)
        found += part.tobytes()
    return bytes(found)


@given(count=st.integers(1, 40), data=st.data(), name=st.sampled_from(["none", "fp16"]))
@examples(100)
def test_parts_are_consecutive_and_whole_however_adding_and_reading_alternate(count, data, name):
    stream = Stream(count, name)
    added, read, parts, reader = 0, 0, [], None
    while added < count or read < len(stream.data):
        behind = read < (stream.pieces[added - 1].stop if added else 0)
        if added < count and not (behind and data.draw(st.booleans())):
            stream.add(added, added + 1)
            added += 1
        elif behind:
            reader = reader or stream.parts()
            start, part = next(reader)
            parts.append((start, part.copy()))
            read = start + part.nbytes
    decoded = np.frombuffer(joined(parts), np.float32)
    assert np.allclose(decoded, stream.data.view(np.float32), rtol=0 if name == "none" else 1e-3)


@pytest.mark.parametrize("name", ["none", "int8", "topk"])
@pytest.mark.parametrize("seed", range(5))
def test_parts_are_whole_whatever_the_two_threads_do(name, seed):
    held = DeltaBase(np.zeros(50 * PIECE_BYTES, np.uint8)) if name == "topk" else None
    stream, rng = Stream(50, name, held), random.Random(seed)
    pauses = [rng.choice([0, 0, 0, rng.random() * 0.004]) for _ in stream.pieces]

    def add():
        for index, pause_s in enumerate(pauses):
            time.sleep(pause_s)
            stream.add(index, index + 1)

    thread = threading.Thread(target=add)
    thread.start()
    parts = []
    time.sleep(rng.random() * 0.01)
    for start, part in stream.parts():
        parts.append((start, part.copy()))
        time.sleep(rng.choice([0, 0, rng.random() * 0.004]))
    thread.join()
    whole = Stream(
        50, name, None if held is None else DeltaBase(np.zeros(50 * PIECE_BYTES, np.uint8))
    )
    whole.add()
    assert joined(parts) == joined(whole.parts())
    assert held is None or held.token == TOKEN


def test_of_a_reader_that_is_behind_only_so_many_frames_are_kept():
    stream = Stream(50)
    reader = stream.parts()
    stream.add(0, 1)
    next(reader)
    stream.add(1)
    kept = [not np.may_share_memory(part, stream.buffer) for _, part in reader]
    assert kept == QUEUED_PIECES * [True] + (49 - QUEUED_PIECES) * [False]


def test_what_came_before_the_reader_is_one_part():
    stream = Stream(10)
    stream.add(0, 6)
    assert not stream.incoming.is_complete
    reader = stream.parts()
    assert next(reader)[1].nbytes == 6 * PIECE_BYTES
    stream.add(6)
    assert [part.nbytes for _, part in reader] == 4 * [PIECE_BYTES]


def test_a_snapshot_that_came_before_the_reader_is_complete():
    stream = Stream(3)
    stream.add()
    assert stream.incoming.is_complete
    assert joined(stream.parts()) == stream.data.tobytes()


def test_pieces_from_the_middle_of_a_snapshot_keep_their_places():
    stream = Stream(10, shard=slice(3, 7))
    stream.add(0, 2)
    reader = stream.parts()
    parts = [next(reader)]
    stream.add(2)
    assert [(start, part.nbytes) for start, part in [*parts, *reader]] == [
        (3 * PIECE_BYTES, 2 * PIECE_BYTES),
        (5 * PIECE_BYTES, PIECE_BYTES),
        (6 * PIECE_BYTES, PIECE_BYTES),
    ]


@pytest.mark.parametrize("came", [0, 1, 3])
def test_what_never_comes_ends_the_parts_in_time(came):
    stream = Stream(5)
    stream.add(0, came)
    begin = time.monotonic()
    with pytest.raises(BrokenFetchError) as caught:
        joined(stream.parts(timeout_s=0.05))
    assert caught.value.outcome is Outcome.TIMED_OUT
    assert 0.04 <= time.monotonic() - begin < at_most(1.0)


@pytest.mark.parametrize("is_waiting", [True, False])
def test_what_is_broken_off_ends_the_parts_at_once_and_says_why(is_waiting):
    stream = Stream(5)
    stream.add(0, 2)
    reader = stream.parts()
    if is_waiting:
        next(reader)
    stream.incoming.break_off(Outcome.LOST, "it is gone")
    begin = time.monotonic()
    with pytest.raises(BrokenFetchError, match="it is gone") as caught:
        list(reader)
    assert caught.value.outcome is Outcome.LOST
    assert time.monotonic() - begin < at_most(1.0)


@pytest.mark.parametrize("is_waiting", [True, False])
def test_what_cannot_be_decoded_or_is_not_finite_is_never_a_part(is_waiting):
    stream = Stream(3, "int8")
    reader = stream.parts()
    stream.add(0, 1)
    if is_waiting:
        next(reader)
    with pytest.raises(ProtocolError):
        stream.incoming.add(stream.pieces[1], b"short")
    stream.data.view(np.float32)[PIECE_BYTES // 4] = np.inf
    with pytest.raises(BrokenFetchError) as caught:
        stream.add(1, 2)
    assert caught.value.outcome is Outcome.DIVERGED
    stream.incoming.break_off(caught.value.outcome)
    with pytest.raises(BrokenFetchError):
        assert sum(part.nbytes for _, part in reader) <= PIECE_BYTES


def test_what_is_abandoned_takes_no_more():
    stream = Stream(3, "topk", DeltaBase(np.zeros(3 * PIECE_BYTES, np.uint8), token=3))
    assert stream.held.token == NOTHING  # from the announcement on
    stream.add(0, 2)
    before = stream.held.data.copy()
    stream.incoming.abandon()
    stream.add(2)
    assert np.array_equal(stream.held.data, before)
    assert stream.held.token == NOTHING


@pytest.mark.parametrize("read", [0, 1, 7, 29])
def test_what_is_held_is_all_there_once_it_is_agreed_on(read):
    """A reader that stops before the end leaves parts in the queue: they count as held, too."""
    stream = Stream(30, "topk", DeltaBase(np.zeros(30 * PIECE_BYTES, np.uint8)))
    stream.add(0, 1)
    reader = stream.parts()
    next(reader)
    stream.add(1)
    for _ in range(read):
        next(reader)
    stream.incoming.abandon()
    whole = Stream(30, "topk", DeltaBase(np.zeros(30 * PIECE_BYTES, np.uint8)))
    whole.add()
    assert stream.held.token in (NOTHING, TOKEN)
    assert stream.held.token == NOTHING or np.array_equal(stream.held.data, whole.held.data)


def test_what_is_held_is_agreed_on_when_all_of_it_was_read():
    for buffered in (0, 1, 29, 30):
        stream = Stream(30, "topk", DeltaBase(np.zeros(30 * PIECE_BYTES, np.uint8)))
        stream.add(0, buffered)
        reader = stream.parts()
        if buffered:
            next(reader)
            stream.add(buffered)
        else:
            stream.add()
        list(reader)
        assert stream.held.token == TOKEN
