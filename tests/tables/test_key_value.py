import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_states import fill, fingerprint
from support.updaters import OF_ANY_FORM

from dpwa.errors import ProtocolError, UserError
from dpwa.tables.key_value import KeyValueStore, as_keys, shard_of_keys, split_keys
from dpwa.tables.rows import accumulate
from dpwa.tables.shard_memory import ShardState
from dpwa.tables.updaters import make_updater

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
any_key = st.integers(SMALLEST, LARGEST)


def store(columns=None, dtype="float64", updater="default", default=0.0):
    return KeyValueStore(columns, dtype, make_updater(updater), default)


def keys(*values):
    return np.array(values, np.int64)


def test_the_shard_of_a_key_is_that_of_the_documented_hash():
    def split_mix(key):
        z = (key + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    # The first output of the generator SplitMix64 seeded with 0, as published.
    assert split_mix(0) == 0xE220A8397B1DCDAF
    some = [0, 1, -1, 12345, LARGEST, SMALLEST]
    for shards in (1, 2, 7):
        expected = [split_mix(key) % shards for key in some]
        assert shard_of_keys(keys(*some), shards).tolist() == expected


def test_consecutive_and_strided_keys_spread_evenly():
    for stride in (1, 4, 1024):
        counts = np.bincount(shard_of_keys(np.arange(4000) * stride, 4))
        # Of a binomial of 4000 at 1/4: five standard errors.
        assert np.abs(counts - 1000).max() < 5 * (4000 * 0.25 * 0.75) ** 0.5


@given(some=st.lists(any_key, max_size=30), shards=st.integers(1, 9))
def test_parts_of_keys_put_together_give_all_in_their_places(some, shards):
    given_keys = as_keys(some)
    together = np.zeros_like(given_keys)
    for part in split_keys(given_keys, shards):
        assert (shard_of_keys(part.rows, shards) == part.shard).all()
        together[part.where] = part.rows
    assert together.tolist() == some


@pytest.mark.parametrize("given_keys", [[1.5], [True], ["a"], [2**63], [[1]], None])
def test_what_is_no_key_is_refused(given_keys):
    with pytest.raises(UserError, match=r"^keys?\b"):
        as_keys(given_keys)


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_missing_keys_have_the_default_and_start_from_it(columns, dtype):
    state = store(columns, dtype, default=2.5)
    row = () if columns is None else (columns,)
    state.apply("c", 1, keys(-3, 8), np.ones((2, *row), dtype))
    values = state.read_rows(keys(8, 0, -3, 8))
    assert values.dtype == dtype
    expected = np.array([3.5, 2.5, 3.5, 3.5])
    np.testing.assert_array_equal(values, np.broadcast_to(expected, (*row, 4)).T)
    assert sorted(state._slots) == [-3, 8], "reading makes no keys"
    assert len(state) == 2
    assert store().read_rows(keys()).shape == (0,)


@given(
    entries=st.lists(st.tuples(any_key, st.integers(-99, 99)), max_size=60),
    clients=st.integers(1, 4),
    shards=st.integers(1, 4),
    rng=st.randoms(use_true_random=False),
)
def test_integers_add_up_like_in_a_dictionary_in_any_order(entries, clients, shards, rng):
    expected = {}
    for key, value in entries:
        expected[key] = expected.get(key, 0) + value
    rng.shuffle(entries)
    stores = [store() for _ in range(shards)]
    counters = dict.fromkeys(((c, s) for c in range(clients) for s in range(shards)), 0)
    while entries:
        client = rng.randrange(clients)
        some = [entries.pop() for _ in range(min(len(entries), rng.randint(1, 5)))]
        summed, delta = accumulate(
            as_keys([k for k, _ in some]), np.array([v for _, v in some], float)
        )
        for part in split_keys(summed, shards):
            counters[client, part.shard] += 1
            sent = (counters[client, part.shard], part.rows, delta[part.where])
            assert stores[part.shard].apply(str(client), *sent)
            if rng.random() < 0.3:
                assert not stores[part.shard].apply(str(client), *sent)
    held = {}
    for state in stores:
        held.update(zip(state._slots, state.read_rows(keys(*state._slots)).tolist(), strict=True))
    assert held == expected


@pytest.mark.parametrize("updater", OF_ANY_FORM)
@pytest.mark.parametrize("columns", [None, 3])
def test_a_store_that_grows_updates_like_a_shard_and_so_does_its_copy(updater, columns):
    rng = np.random.default_rng(1)
    rows = 100
    expected = ShardState(rows, columns, "float64", make_updater(updater))
    state, copy = store(columns, updater=updater), store(columns, updater=updater)
    copy.apply("x", 1, keys(1, 2), np.ones((2, *expected.values.shape[1:])))
    names = np.sort(rng.choice(10**9, rows, replace=False))
    for counter in range(1, 21):
        chosen = np.sort(rng.choice(rows, 12, replace=False))
        delta = rng.normal(size=(12, *expected.values.shape[1:]))
        expected.apply("c", counter, chosen, delta)
        state.apply("c", counter, names[chosen], delta)
        if counter == 10:
            fill(copy, state.export())
        elif counter > 10:
            copy.apply("c", counter, names[chosen], delta)
    np.testing.assert_array_equal(state.read_rows(names), expected.values)
    np.testing.assert_array_equal(copy.read_rows(names), expected.values)
    assert fingerprint(copy) == fingerprint(state)
    assert copy.applied == {"c": (20, 20)}
    assert copy.read_rows(keys(1, 2)).any() == np.isin([1, 2], names).any()


def test_many_keys_may_come_in_one_addition():
    state = store()
    state.apply("c", 1, np.arange(1000), np.arange(1000.0))
    assert state.read_rows(np.arange(1000)).tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("rows", "delta", "message"),
    [
        (None, np.ones(1), "without keys"),
        (keys(5, 5), np.ones(2), "must be sorted"),
        (keys(5), np.ones(2), r"expected \(1,\)"),
        (np.array([5.0]), np.ones(1), "dtype float64, expected"),
    ],
)
def test_a_malformed_addition_makes_no_keys(rows, delta, message):
    state = store()
    with pytest.raises(ProtocolError, match=message):
        state.apply("c", 1, rows, delta)
    assert len(state) == 0
    assert state.applied == {}


def test_an_incomplete_store_is_not_read():
    state = store()
    state.apply("c", 1, keys(5), np.ones(1))
    copy = store()
    fill(copy, list(state.export())[:-1])
    with pytest.raises(ProtocolError, match="waits for its state"):
        copy.read_rows(keys(5))
    with pytest.raises(ProtocolError, match="different table"):
        fill(store(default=1.0), state.export())


def test_a_store_that_has_no_room_to_grow_is_as_it_was():
    state = KeyValueStore(None, "float64", make_updater("adagrad"))
    state.apply("c", 1, np.arange(10), np.ones(10))
    before, new_state = fingerprint(state), state.updater.new_state

    def no_memory(*_):
        raise MemoryError

    state.updater.new_state = no_memory
    with pytest.raises(ProtocolError, match="MemoryError"):
        state.apply("c", 2, np.arange(100), np.ones(100))
    state.updater.new_state = new_state
    assert fingerprint(state) == before
    state.apply("c", 3, np.arange(100), np.ones(100))
    assert state.applied == {"c": (3, 2)}
    assert state.read_rows(np.arange(100)).shape == (100,)
