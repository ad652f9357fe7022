"""A snapshot on its way: pieces are decoded to their places."""

import itertools
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.requests import header_of

from dpwa.clock import Deadline
from dpwa.data.codecs import codec
from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import ProtocolError
from dpwa.node.arrival import Arrival, BrokenFetchError, FetchRequest, IncomingSnapshot
from dpwa.policy.health import Outcome
from dpwa.runtime import SYSTEM
from dpwa.types import TrainingProgress

PIECE_BYTES = 64


def is_finite(values, dtype, start):
    return bool(np.isfinite(values.view(dtype)).all())


class Stream:
    """An `IncomingSnapshot` of some pieces, with what a peer would send of random values."""

    def __init__(self, count, codec_name="none", shard=slice(None), vouches=True):
        self.data = np.random.default_rng(count).standard_normal(count * PIECE_BYTES // 4)
        self.data = self.data.astype(np.float32).view(np.uint8)
        layout = Layout((TensorSpec("weight", "float32", (len(self.data) // 4,), 4),))
        self.pieces = layout.pieces(len(self.data), PIECE_BYTES)[shard]
        self.codec = codec(codec_name)
        header = header_of(is_finite=vouches, nbytes=len(self.data), codec=codec_name)
        self.buffer = np.zeros(len(self.data), np.uint8)
        self.incoming = IncomingSnapshot(header, self.pieces, self.codec, self.buffer, is_finite)

    def payload(self, index):
        piece = self.pieces[index]
        return self.codec.encode(self.data[piece.start : piece.stop], piece.dtype)

    def add(self, first=0, stop=None):
        for index in range(first, len(self.pieces) if stop is None else stop):
            self.incoming.add_piece(self.pieces[index], memoryview(self.payload(index)))


@given(count=st.integers(1, 40), name=st.sampled_from(["none", "fp16", "int8"]), data=st.data())
@examples(100)
def test_pieces_lie_at_their_places_decoded(count, name, data):
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    stream = Stream(count, name, shard=slice(first, last))
    stream.add()
    incoming, sent = (
        stream.incoming.arrival("w2"),
        stream.data[first * PIECE_BYTES : last * PIECE_BYTES],
    )
    assert (incoming.start, incoming.nbytes) == (first * PIECE_BYTES, len(stream.data))
    decoded, exact = incoming.data.view(np.float32), sent.view(np.float32)
    assert name != "none" or np.array_equal(decoded, exact)
    assert np.allclose(decoded, exact, rtol=1e-3, atol=0 if name == "none" else 0.05)
    untouched = np.delete(stream.buffer, np.s_[first * PIECE_BYTES : last * PIECE_BYTES])
    assert not untouched.any()


def test_what_cannot_be_decoded_or_is_not_finite_is_refused():
    stream = Stream(3, "int8")
    stream.add(0, 1)
    with pytest.raises(ProtocolError):
        stream.incoming.add_piece(stream.pieces[1], b"short")
    stream.data.view(np.float32)[PIECE_BYTES // 4] = np.inf
    with pytest.raises(BrokenFetchError) as caught:
        stream.add(1, 2)
    assert caught.value.outcome is Outcome.DIVERGED


@pytest.mark.parametrize("vouches", [True, None])
@pytest.mark.parametrize("name", ["none", "fp16", "int8"])
def test_values_are_checked_unless_they_come_as_their_publisher_has_checked_them(name, vouches):
    stream = Stream(2, name, vouches=vouches)
    stream.data.view(np.float32)[PIECE_BYTES // 4] = np.nan
    stream.add(0, 1)
    if vouches and name == "none":
        stream.add(1)
        assert np.isnan(stream.incoming.arrival("w2").data.view(np.float32)).sum() == 1
    else:
        with pytest.raises(BrokenFetchError):
            stream.add(1)


def end(request):
    request.end_fetch()


def offer(request):
    data = np.zeros(8, np.uint8)
    request.offer("w2", Arrival("w2", 8, TrainingProgress(1.0, 0.1), 1, data))


def interrupts_a_wait(line, thread):
    """Return a trace function that starts a thread at a line of `take_result`, and waits for it."""
    lines = []

    def trace(frame, event, _):
        if frame.f_code is not FetchRequest.take_result.__code__:
            return None
        lines.append(event)
        if len(lines) == line + 1:
            thread.start()
            thread.join(1.0)
            assert not thread.is_alive()
        return trace

    return trace


@pytest.mark.parametrize("ends", [end, offer])
def test_a_fetch_ends_while_a_signal_handler_interrupts_the_wait_for_it(ends):
    """At every line of the wait: a handler that closes the node waits for the fetching thread."""
    for line in itertools.count():
        request = FetchRequest(Layout(()), Deadline(SYSTEM, 1.0), SYSTEM)
        thread = threading.Thread(target=ends, args=(request,))
        previous = sys.gettrace()
        sys.settrace(interrupts_a_wait(line, thread))
        try:
            found = request.take_result(0.01)
        finally:
            sys.settrace(previous)
        if thread.ident is None:
            break  # at all of them
        assert found is request.found
    assert line > 2
