"""The codec topk: what is sent, and that both ends hold the same."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.codecs import codec
from dpwa.errors import ProtocolError, UserError

LARGE = 200_000  # several segments of 65536 values, and a rest
sizes = st.integers(1, 3000) | st.just(LARGE)
keeps = st.sampled_from([0.001, 0.01, 0.1, 0.3, 1.0])
dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32)


class Link:
    """A serving and a fetching end, both of which hold zeros."""

    def __init__(self, size, keep, dtype="float32"):
        self.codec = codec("topk", keep=keep)
        self.dtype = dtype
        self.there, self.here = np.zeros(size, dtype), np.zeros(size, dtype)

    def send(self, values):
        payload = self.codec.encode(values.view(np.uint8), self.dtype, self.there.view(np.uint8))
        room = self.here.view(np.uint8)
        assert self.codec.decode(payload.data, self.dtype, room) is room
        np.testing.assert_array_equal(self.there.view(np.uint8), room)
        return payload


def squared(difference):
    return float(np.sum(difference.astype(np.float64) ** 2))


@given(seeds, sizes, keeps, dtypes)
def test_every_payload_brings_the_reader_nearer_by_the_share_that_is_kept(seed, size, keep, dtype):
    rng, link = np.random.default_rng(seed), Link(size, keep, dtype)
    count = math.ceil(keep * size)
    for _ in range(3):
        values = rng.standard_normal(size).astype(dtype)
        before = squared(values - link.here)
        link.send(values)
        after = squared(values - link.here)
        assert after <= (1 - count / size) * before * (1 + 1e-5) + 1e-30


@given(seeds, st.integers(1, 500), keeps, dtypes)
def test_a_constant_vector_is_reached_exactly(seed, size, keep, dtype):
    rng, link = np.random.default_rng(seed), Link(size, keep, dtype)
    values = rng.standard_normal(size).astype(dtype)
    for _ in range(math.ceil(size / math.ceil(keep * size))):
        link.send(values)
    np.testing.assert_array_equal(link.here, values)


@given(seeds, sizes, keeps)
def test_the_values_that_have_changed_most_are_sent_as_they_are(seed, size, keep):
    rng, link = np.random.default_rng(seed), Link(size, keep)
    # Few distinct values, so that many differences are equal, and most are 0.
    values = rng.choice(np.float32([0, 0, 0, 1, -2, 3]), size)
    link.send(values)
    sent = np.flatnonzero(link.here)
    assert sent.size == min(math.ceil(keep * size), np.count_nonzero(values))
    np.testing.assert_array_equal(link.here[sent], values[sent])
    left = np.abs(np.delete(values, sent))
    assert sent.size == 0 or left.size == 0 or left.max() <= np.abs(values[sent]).min()


@pytest.mark.parametrize("first", [0, 3])
def test_the_largest_are_found_when_a_sample_misleads(first):
    """Every sixteenth value is sampled: here either all that have changed, or none of them."""
    link, changed = Link(LARGE, 0.01), LARGE // 16
    values = np.zeros(LARGE, np.float32)
    values[first::16] = np.arange(1, changed + 1)
    link.send(values)
    assert np.count_nonzero(link.here) == 2000
    assert link.here[link.here > 0].min() == changed - 2000 + 1


def test_nothing_is_sent_when_nothing_has_changed():
    link = Link(1000, 1.0)
    values = np.arange(1000, dtype=np.float32)
    link.send(values)
    assert link.send(values).nbytes == 4  # the count of one segment


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("at", [0, 17, 998, 999])
def test_a_value_that_is_not_finite_is_sent_first_and_replaced_again(value, dtype, at):
    link = Link(1000, 0.001, dtype)
    values = np.linspace(1, 1000, 1000).astype(dtype)
    values[at] = value
    link.send(values)
    np.testing.assert_array_equal(np.delete(link.here, at), np.zeros(999))
    np.testing.assert_array_equal(link.here[at], values[at])
    values[at] = 1.0
    link.send(values)
    assert link.here[at] == 1.0
    assert np.isfinite(link.here).all()


def test_a_difference_that_overflows_is_sent():
    link = Link(100, 0.01)
    link.there[40] = link.here[40] = -3e38
    values = np.full(100, 1e38, np.float32)
    values[40] = 3e38
    link.send(values)
    assert link.here[40] == np.float32(3e38)


def test_what_is_not_floating_is_held_as_a_whole():
    one, held, room = codec("topk"), np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    piece = np.arange(16, dtype=np.uint8)
    payload = one.encode(piece, "int64", held)
    assert one.decode(payload.data, "int64", room) is room
    assert np.array_equal(held, piece)
    assert np.array_equal(room, piece)


def packed(counts, values, indices):
    parts = np.array(counts, "<u4"), np.array(values, "<f4"), np.array(indices, "<u2")
    return b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize(
    ("counts", "indices"),
    [
        ([2, 0], [5, 5]),
        ([2, 0], [6, 5]),
        ([1, 1], [0, 100]),  # beyond the 65636 values of the piece
        ([1, 0], [5, 6]),
        ([3, 0], [5, 6]),
        ([2**32 - 1, 3], [5, 6]),  # 2 modulo 2**32
        ([2**32 - 1, 2**32 - 1], [5, 6]),
    ],
)
def test_impossible_counts_and_indices_are_refused_and_nothing_is_written(counts, indices):
    room = np.zeros(65636, np.float32)
    foreign = packed(counts, [1.0] * len(indices), indices)
    with pytest.raises(ProtocolError):
        codec("topk").decode(foreign, "float32", room.view(np.uint8))
    assert not room.any()
    codec("topk").decode(packed([1, 1], [1.0, 2.0], [5, 99]), "float32", room.view(np.uint8))
    assert (room[5], room[65635]) == (1.0, 2.0)


def test_more_values_than_the_piece_has_are_refused():
    room = np.zeros(2, np.float32)
    with pytest.raises(ProtocolError, match="brings no values to 2"):
        codec("topk").decode(packed([3], [1.0] * 3, [0, 1, 2]), "float32", room.view(np.uint8))


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, math.nan])
def test_an_impossible_share_is_the_users_error(keep):
    with pytest.raises(UserError, match="over 0 and up to 1"):
        codec("topk", keep=keep)


def test_encoding_needs_what_the_reader_holds():
    with pytest.raises(ValueError, match="what the reader holds"):
        codec("topk").encode(np.zeros(8, np.uint8), "float32")
