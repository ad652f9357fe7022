import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_states import fill, fingerprint

from dpwa.errors import DpwaError, ProtocolError
from dpwa.tables.shard import CHUNK_BYTES
from dpwa.tables.shard_memory import ShardState
from dpwa.tables.updaters import make_updater

ROWS = CHUNK_BYTES // 4 + 1000  # two pieces of values, and two of the updater's state


def shard(rows=ROWS, options=None, dtype="float32", updater="momentum"):
    return ShardState(rows, None, dtype, make_updater(updater, options))


def filled():
    state = shard()
    rng = np.random.default_rng(9)
    for client in range(3):
        state.apply(str(client), 1, None, rng.normal(size=ROWS).astype("float32"))
    return state


STATE = filled()
PIECES = list(STATE.export())


def test_pieces_are_named_and_bounded():
    names = [name for name, _ in PIECES]
    assert names == ["header", "applied", "values", "values", "state.s", "state.s", "end"]
    assert max(len(piece) for _, piece in PIECES) == CHUNK_BYTES


def test_many_clients_are_split_as_well():
    state = shard(rows=1)
    state.applied = {f"client-{i}-{'x' * 40}": (i, i) for i in range(10_000)}
    exported = list(state.export())
    assert max(len(piece) for _, piece in exported) == CHUNK_BYTES
    copy = shard(rows=1)
    fill(copy, exported)
    assert copy.applied == state.applied


def test_a_state_can_be_fed_piece_by_piece_and_is_not_used_before_the_end():
    state = shard()
    incoming = state.importing()
    for name, piece in PIECES[:-1]:
        assert not incoming.feed(name, memoryview(piece))
        for use in (
            lambda: state.read_rows(),
            lambda: state.apply("c", 1, None, np.zeros(ROWS, "float32")),
            lambda: fingerprint(state),
        ):
            with pytest.raises(ProtocolError, match="waits for its state"):
                use()
    assert incoming.feed(*PIECES[-1])
    assert state.is_whole
    np.testing.assert_array_equal(state.values, STATE.values)


def check_refused(pieces):
    state = shard()
    with pytest.raises(ProtocolError):
        fill(state, pieces)
    assert not state.is_whole
    fill(state, PIECES)
    assert fingerprint(state) == fingerprint(STATE)


@pytest.mark.parametrize("left_out", range(len(PIECES) - 1))  # the last is still to come then
def test_a_piece_that_is_left_out_is_found(left_out):
    check_refused(PIECES[:left_out] + PIECES[left_out + 1 :])


@pytest.mark.parametrize("twice", range(len(PIECES) - 1))
def test_a_piece_that_comes_twice_is_found(twice):
    check_refused(PIECES[: twice + 1] + PIECES[twice:])


@pytest.mark.parametrize("place", range(len(PIECES) - 1))
def test_pieces_in_another_order_are_found(place):
    first, second = PIECES[place : place + 2]
    check_refused([*PIECES[:place], second, first, *PIECES[place + 2 :]])


@given(place=st.integers(0, len(PIECES) - 1), data=st.data())
def test_a_flipped_bit_is_found(place, data):
    name, piece = PIECES[place]
    bit = data.draw(st.integers(0, 8 * len(piece) - 1), "bit")
    changed = bytearray(piece)
    changed[bit // 8] ^= 1 << bit % 8
    state = ShardState(ROWS, None, "float32", make_updater("momentum"))
    with pytest.raises(ProtocolError):
        fill(state, [*PIECES[:place], (name, bytes(changed)), *PIECES[place + 1 :]])


def test_pieces_of_two_moments_do_not_fit_together():
    later = filled()
    later.apply("0", 2, None, np.ones(ROWS, "float32"))
    mixed = list(later.export())
    check_refused(PIECES[:3] + mixed[3:])


def test_an_addition_during_an_export_is_found():
    state = filled()
    exported = state.export()
    next(exported)
    state.apply("0", 2, None, np.ones(ROWS, "float32"))
    with pytest.raises(DpwaError, match="changed while its state was exported"):
        list(exported)


@pytest.mark.parametrize(
    "other",
    [
        shard(options={"momentum": 0.5}),
        shard(updater="default"),
        shard(dtype="float64"),
        shard(rows=ROWS + 1),
    ],
)
def test_the_state_of_another_table_is_refused(other):
    with pytest.raises(ProtocolError, match=r"different table|the state of a shard has"):
        fill(shard(), other.export())


@pytest.mark.parametrize("header", [b"", b"\xff", b"[]", b"{}", b'{"form": 1}'])
def test_a_header_that_is_none_is_refused(header):
    with pytest.raises(ProtocolError):
        fill(shard(), [("header", header)])
