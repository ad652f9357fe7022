import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_states import fill, fingerprint
from support.updaters import OF_ANY_FORM

from dpwa.errors import ProtocolError, UserError
from dpwa.tables.rows import accumulate, cut, split
from dpwa.tables.shard_memory import ShardState
from dpwa.tables.updaters import make_updater

DTYPES = ["float32", "float64"]


def shard(rows=4, columns=None, dtype="float32", updater="default", memory=None):
    return ShardState(rows, columns, dtype, make_updater(updater), memory)


def ids(*rows):
    return np.array(rows, np.int64)


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 2])
def test_a_shard_starts_at_zero_or_at_what_its_memory_holds(dtype, columns):
    shape = (4,) if columns is None else (4, columns)
    assert not shard(columns=columns, dtype=dtype).read_rows().any()
    memory = np.full(shape, 7, dtype)
    state = shard(columns=columns, dtype=dtype, memory=memory)
    state.apply("c", 1, ids(2), np.ones((1, *shape[1:]), dtype))
    assert state.values is memory
    assert memory[2].tolist() == (np.zeros(shape[1:]) + 8).tolist()
    assert state.read_rows(ids(2, 0, 2)).dtype == dtype
    np.testing.assert_array_equal(state.read_rows(ids(2, 0, 2)), memory[[2, 0, 2]])


def test_what_is_read_is_a_copy():
    state = shard()
    for values in (state.read_rows(), state.read_rows(ids(0, 1, 2, 3))):
        values += 1
    assert not state.values.any()


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros(5, "float32"),
        np.zeros(4, "float64"),
        np.zeros(8, "float32")[::2],
        np.broadcast_to(np.float32(0), (4,)),
    ],
)
def test_memory_that_does_not_fit_is_refused(memory):
    with pytest.raises(ValueError, match="expected writeable and contiguous memory of shape"):
        shard(memory=memory)


def test_other_dtypes_are_refused():
    with pytest.raises(UserError, match="a table has dtype int32, expected float32 or float64"):
        shard(dtype="int32")


MALFORMED = [
    (ids(0, 0), ones(2), "must be sorted"),
    (ids(1, 0), ones(2), "must be sorted"),
    (ids(3, 4), ones(2), "row ids 3 to 4 for a shard of 4"),
    (ids(-1, 2), ones(2), "row ids -1 to 2"),
    (ids(0), ones(2), r"shape \(2,\) and dtype float32, expected \(1,\)"),
    (ids(0), ones(1, 1), r"shape \(1, 1\)"),
    (ids(0), np.ones(1), "dtype float64, expected"),
    (None, ones(3), r"expected \(4,\)"),
    (np.array([0], np.int32), ones(1), "dtype int32"),
    (np.array([[0]]), ones(1), r"keys of shape \(1, 1\)"),
]


@pytest.mark.parametrize(("rows", "delta", "message"), MALFORMED)
def test_a_malformed_addition_changes_nothing(rows, delta, message):
    state = shard(updater="momentum")
    state.apply("c", 1, None, ones(4))
    before = fingerprint(state)
    with pytest.raises(ProtocolError, match=message):
        state.apply("c", 2, rows, delta)
    assert fingerprint(state) == before
    assert state.apply("c", 2, ids(0), ones(1))


@pytest.mark.parametrize("rows", [ids(4), ids(-1), ids(0, 2**40)])
def test_rows_that_are_not_there_are_not_read(rows):
    with pytest.raises(ProtocolError, match="for a shard of 4"):
        shard().read_rows(rows)


def test_an_empty_shard_takes_part():
    state = shard(rows=0)
    assert state.read_rows().size == 0
    assert state.read_rows(ids()).size == 0
    assert state.apply("c", 1, None, ones(0))
    with pytest.raises(ProtocolError, match="a shard of 0"):
        state.read_rows(ids(0))
    copy = shard(rows=0)
    fill(copy, state.export())
    assert copy.applied == {"c": (1, 1)}


def test_each_addition_takes_effect_once():
    state = shard(rows=1)
    assert state.apply("a", 1, None, ones(1))
    assert not state.apply("a", 1, None, ones(1))
    assert state.apply("b", 1, None, ones(1))
    assert state.apply("a", 2, None, ones(1))
    assert not state.apply("a", 1, None, ones(1))
    assert state.values.tolist() == [3]
    assert state.applied == {"a": (2, 2), "b": (1, 1)}


def test_additions_that_others_have_given_up_may_be_missing():
    state = shard(rows=1)
    assert state.apply("a", 3, None, ones(1))
    assert not state.apply("a", 2, None, ones(1))
    assert state.apply("a", 7, None, ones(1))
    assert state.values.tolist() == [2]


@pytest.mark.parametrize("rows", [None, ids(1)])
def test_first_values_replace_what_there_is_and_ask_no_updater(rows):
    state = shard(rows=2)
    state.apply("a", 1, None, ones(2))
    values = 5 * ones(2 if rows is None else 1)
    assert state.apply("a", 2, rows, values, is_first=True)
    assert not state.apply("a", 2, rows, 9 * values, is_first=True)
    assert state.values.tolist() == [5 if rows is None else 1, 5]
    with pytest.raises(ProtocolError, match="row ids 2 to 2 for a shard of 2"):
        state.apply("a", 3, ids(2), ones(1), is_first=True)


ROWS, COLUMNS = 7, 2
addition = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(-99, 99)), min_size=1, max_size=5
)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), clients=st.lists(st.lists(addition, max_size=5), min_size=1, max_size=4))
def test_integers_add_up_exactly_in_any_order_with_resends_and_failovers(dtype, data, clients):
    """Clients send in turns drawn at random; some additions are sent again, from any point back.

    Now and then a shard fails over to a copy of an earlier moment: what was applied after it was
    not acknowledged, so that all clients resend from what their copy has.
    """
    cuts = cut(ROWS, data.draw(st.integers(1, 9), "shards"))
    shards = [shard(s.rows, COLUMNS, dtype) for s in cuts]
    outboxes = {}  # of each client and shard, in the order of its additions
    expected = np.zeros((ROWS, COLUMNS), dtype)
    for client, additions in enumerate(clients):
        for entries in additions:
            rows = np.array([row for row, _ in entries], np.int64)
            delta = np.array([[value, -2 * value] for _, value in entries], dtype)
            np.add.at(expected, rows, delta)
            rows, delta = accumulate(rows, delta)
            for part in split(rows, cuts):
                outbox = outboxes.setdefault((str(client), part.shard), [])
                outbox.append((part.rows, delta[part.where]))

    backups = [list(state.export()) for state in shards]
    for _ in range(data.draw(st.integers(0, 25), "turns")):
        if not outboxes:
            break
        (client, index), outbox = data.draw(st.sampled_from(list(outboxes.items())), "who")
        state = shards[index]
        what = data.draw(st.sampled_from(["next", "again", "backup", "fail"]), "what")
        last = state.applied.get(client, (0, 0))[0]
        if what == "next" and last < len(outbox):
            assert state.apply(client, last + 1, *outbox[last])
        elif what == "again" and last:
            counter = data.draw(st.integers(1, last), "counter")
            assert not state.apply(client, counter, *outbox[counter - 1])
        elif what == "backup":
            backups[index] = list(state.export())
        elif what == "fail":
            shards[index] = shard(cuts[index].rows, COLUMNS, dtype)
            fill(shards[index], backups[index])
    for (client, index), outbox in outboxes.items():
        for counter, part in enumerate(outbox, start=1):  # all of it once more
            shards[index].apply(client, counter, *part)

    result = np.concatenate([state.read_rows() for state in shards])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("updater", OF_ANY_FORM)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replica_goes_on_exactly_like_its_primary(updater, dtype):
    rng = np.random.default_rng(5)
    primary, replica = (shard(6, 3, dtype, updater) for _ in range(2))

    def add(states, counter):
        rows = np.unique(rng.integers(0, 6, 4))
        delta = rng.normal(size=(len(rows), 3)).astype(dtype)
        return [state.apply("c", counter, rows, delta) for state in states]

    for counter in range(1, 4):
        add([primary], counter)
    replica.values += 5  # something old
    fill(replica, primary.export())
    assert fingerprint(replica) == fingerprint(primary)
    assert add([primary, replica], 3) == [False, False]
    assert add([primary, replica], 4) == [True, True]
    np.testing.assert_array_equal(replica.values, primary.values)
    assert fingerprint(replica) == fingerprint(primary)
    assert replica.applied == primary.applied == {"c": (4, 4)}


def test_the_fingerprint_tells_values_updater_state_and_counters_apart():
    prints = set()
    for counter in range(4):
        state = shard(updater="momentum")
        for i in range(1, counter + 1):
            state.apply("c", i, None, np.zeros(4, "float32"))
        prints.add(fingerprint(state))
    for name in ("values", "state.s"):
        state = shard(updater="momentum")
        state._arrays()[name][0] = 1
        prints.add(fingerprint(state))
    assert len(prints) == 6
