"""Tables of nodes that are threads of this process, connected over loopback."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from support.nodes import at_once, config_of, eventually

from dpwa import DpwaConnection
from dpwa.collectives.views import ViewDiscovery
from dpwa.errors import (
    ClosedError,
    MismatchError,
    TableLostError,
    TableTimeoutError,
    UserError,
)
from dpwa.policy.group_views import GroupView
from dpwa.tables import operations
from dpwa.tables.node_tables import Tables
from dpwa.wire.tables import TableAdded, TableAddition


class Worker:
    """A node, and its tables."""

    def __init__(self, name, config, **options):
        self.name = name
        self.connection = DpwaConnection(name, config)
        self.tables = Tables(self.connection, **options)

    @property
    def user(self):
        """What the calls of the tables go through."""
        return self.tables._user

    @property
    def engine(self):
        return self.user._engine

    @property
    def replication(self):
        return self.engine._replication

    @property
    def store(self):
        return self.engine._store

    @property
    def mail(self):
        return self.engine._mail

    def kill(self):
        """End the node without a word, as far as one can that lives in the same process."""
        self.user.close()
        self.connection.close()

    def close(self):
        self.tables.close()
        self.connection.close()


@contextmanager
def workers(count, settings=None, **options):
    config = config_of(count, **{"collective_timeout_s": 10.0, **(settings or {})})
    with ExitStack() as stack:
        made = []
        for index in range(count):
            made.append(Worker(f"w{index + 1}", config, **options))
            stack.callback(made[-1].close)
        yield made


def on_all(made, task):
    """Call `task(worker)` of all at once; return what each returns."""
    results = {}

    def call(worker):
        results[worker.name] = task(worker)

    at_once([lambda worker=worker: call(worker) for worker in made])
    return [results[worker.name] for worker in made]


def vectors(made, size, first=None, **options):
    return on_all(made, lambda worker: worker.tables.array(size, first, **options))


def matrices(made, rows, columns, first=None, **options):
    return on_all(made, lambda w: w.tables.matrix(rows, columns, first, **options))


def barrier(made):
    on_all(made, lambda worker: worker.tables.barrier())


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_addition_of_every_worker_is_there_after_a_barrier(count, transport):
    delta, rounds = np.arange(10.0) + 1, 5
    with workers(count, {"transport": transport}) as made:

        def task(worker):
            table = worker.tables.array(10)
            found = []
            for i in range(1, rounds + 1):
                table.add(delta)
                table.add(delta, sync=True)
                worker.tables.barrier()
                found.append((i, table.get()))
                worker.tables.barrier()
            return found

        for found in on_all(made, task):
            for i, values in found:
                assert values.tolist() == (2 * delta * count * i).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_read_and_added_to_by_number(dtype):
    with workers(3) as made:
        tables = matrices(made, 100, 3, dtype=dtype)
        ids = np.array([99, 0, 50, 99, 33])
        delta = np.arange(15.0).reshape(5, 3)
        expected = np.zeros((100, 3))
        np.add.at(expected, ids, delta)
        tables[1].add(delta, ids, sync=True)
        for table in tables:
            assert table.get().dtype == dtype
            assert np.array_equal(table.get(), expected)
            assert np.array_equal(table.get([50, 99, 0, 50]), expected[[50, 99, 0, 50]])
            assert np.array_equal(table.get(range(30, 70)), expected[30:70])
            assert table.get([]).shape == (0, 3)


def test_a_worker_reads_what_it_has_added_itself():
    with workers(2) as made:
        table = vectors(made, 6)[0]
        for i in range(1, 20):
            table.add(np.ones(6))
            assert table.get().tolist() == [i] * 6


@pytest.mark.parametrize("size", [0, 1, 2])
def test_tables_may_be_smaller_than_the_number_of_workers(size):
    with workers(3) as made:
        tables = vectors(made, size)
        on_all(tables_of(made, tables), lambda pair: pair.table.add(np.ones(size), sync=True))
        assert [table.get().tolist() for table in tables] == [[3.0] * size] * 3


def tables_of(made, tables):
    class Pair:
        def __init__(self, worker, table):
            self.name, self.worker, self.table = worker.name, worker, table

    return [Pair(*pair) for pair in zip(made, tables, strict=True)]


def test_only_the_first_values_of_the_first_worker_count():
    firsts = {"w1": np.arange(7.0), "w2": np.full(7, 100.0), "w3": None}
    with workers(3) as made:
        tables = on_all(
            made, lambda w: w.tables.array(7, firsts[w.name], updater="sgd", dtype="float64")
        )
        assert [table.get().tolist() for table in tables] == [list(range(7))] * 3
        tables[2].add(np.ones(7), sync=True)
        assert tables[0].get().tolist() == [i - 1 for i in range(7)]


@pytest.mark.parametrize(
    ("updater", "options", "expected"),
    [
        ("default", {}, 4.0),
        ("sgd", {}, -4.0),
        ("momentum", {"momentum": 0.5}, -(1.0 + 1.5)),
        ("adagrad", {"learning_rate": 0.1, "epsilon": 1e-12}, -(0.1 + 0.1 * 2 / 8**0.5)),
    ],
)
def test_the_updater_is_that_of_the_table(updater, options, expected):
    with workers(2) as made:
        table, _ = vectors(made, 3, dtype="float64", updater=updater, options=options)
        table.add(np.full(3, 2.0))
        table.add(np.full(3, 2.0))
        assert table.get() == pytest.approx([expected] * 3, rel=1e-9)


def test_keys_may_be_any_numbers():
    with workers(3) as made:
        tables = on_all(made, lambda w: w.tables.key_value(2, default=-1.0))
        keys = [-(2**63), 5, 2**63 - 1, 5]
        tables[0].add(keys, np.ones((4, 2)), sync=True)
        for table in tables:
            assert table.get([5, 6, -(2**63)]).tolist() == [[1, 1], [-1, -1], [0, 0]]


def test_large_tables_go_in_pieces():
    with workers(3, {"transport": "tcp"}) as made:
        tables = matrices(made, 3000, 200)
        delta = np.arange(600_000, dtype=np.float32).reshape(3000, 200)
        on_all(tables_of(made, tables), lambda pair: pair.table.add(delta, sync=True))
        assert np.array_equal(tables[1].get(), 3 * delta)
        ids = np.random.default_rng(3).integers(0, 3000, 40_000)
        assert np.array_equal(tables[2].get(ids), 3 * delta[ids])


def test_in_step_the_others_go_on_when_one_dies():
    with workers(3, sync=True) as made:

        def task(worker):
            table = worker.tables.array(6, dtype="float64")
            found = []
            for i in range(8):
                if worker.name == "w3" and i == 3:
                    worker.kill()
                    break
                table.add(np.full(6, 10.0 ** int(worker.name[1])))
                found.append(table.get().tolist())
            return found

        first, second, third = on_all(made, task)
        assert first == second
        assert third == first[:3]
        assert first[-1] == [8 * 110 + 3 * 1000] * 6


def test_each_addition_to_a_shard_is_seen_wholly_or_not_at_all():
    size = 300_000
    with workers(2) as made:
        tables = vectors(made, size, dtype="float64")
        is_over = threading.Event()

        def add(_):
            for _ in range(40):
                tables[0].add(np.ones(size))
            tables[0].add(np.ones(size), sync=True)
            is_over.set()

        def read(_):
            seen = set()
            while not is_over.is_set():
                values = tables[1].get()
                for half in (values[: size // 2], values[size // 2 :]):
                    assert half.min() == half.max()
                    seen.add(half[0])
            return seen

        at_once([lambda: add(None), lambda: read(None)])
        assert tables[1].get().min() == 41


def test_additions_that_nobody_waits_for_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(operations, "MAX_WAITING_BYTES", 100_000)
    with workers(2) as made:
        table, _ = vectors(made, 1000)
        pending, most = made[0].user.pending, 0
        for _ in range(300):
            table.add(np.ones(1000))
            most = max(most, pending.waiting_bytes)
        assert 0 < most <= 100_000
        assert table.get().tolist() == [300] * 1000
        assert pending.waiting_bytes == 0


def test_what_was_given_may_be_changed_at_once():
    with workers(2) as made:
        table, _ = vectors(made, 1000)
        delta = np.ones(1000, np.float32)
        table.add(delta)
        delta[:] = 77
        assert table.get().tolist() == [1] * 1000


@pytest.mark.parametrize("replicas", [1, 2])
def test_nothing_that_was_acknowledged_is_lost_with_a_node(replicas):
    with workers(4) as made:
        tables = vectors(made, 40, dtype="float64", replicas=replicas)
        for table in tables:
            table.add(np.ones(40), sync=True)
        made[1].kill()
        for table in (tables[0], tables[2], tables[3]):
            table.add(np.ones(40), sync=True)
            assert table.get().min() >= 5
        rest = [made[0], made[2], made[3]]
        barrier(rest)
        assert [tables[i].get().tolist() for i in (0, 2, 3)] == [[7.0] * 40] * 3


def test_without_replicas_rows_are_lost_with_their_node_and_one_is_told():
    with workers(2) as made:
        tables = vectors(made, 10, replicas=0)
        tables[0].add(np.ones(10), sync=True)
        made[1].kill()
        assert tables[0].get(range(5)).tolist() == [1] * 5
        eventually(lambda: made[0].tables.members == ("w1",))
        with pytest.raises(TableLostError, match="shard 1 of table 0 is lost"):
            tables[0].get()
        with pytest.raises(TableLostError, match="shard 1 of table 0 is lost"):
            tables[0].add(np.ones(10), sync=True)


def test_a_node_that_is_started_again_finds_the_tables():
    with workers(3) as made:
        tables = vectors(made, 9, np.arange(9.0), dtype="float64")
        tables[2].add(np.ones(9), sync=True)
        made[2].kill()
        tables[0].add(np.ones(9), sync=True)
        config = made[0].connection.node.config
        again = Worker("w3", config)
        try:
            table = again.tables.array(9, np.zeros(9), dtype="float64")
            assert table.get().tolist() == [i + 2 for i in range(9)]
            table.add(np.ones(9), sync=True)
            barrier([made[0], made[1], again])
            assert tables[1].get().tolist() == [i + 3 for i in range(9)]
            made[0].kill()  # the copies are complete again
            assert table.get().tolist() == [i + 3 for i in range(9)]
        finally:
            again.close()


def test_parts_that_went_on_by_themselves_find_each_other_again(monkeypatch):
    with workers(2) as made:
        tables = vectors(made, 4)
        monkeypatch.setattr(ViewDiscovery, "seek", lambda *_: None)  # until both have gone on
        for worker in made:  # each takes the other for lost
            group = worker.connection.collectives.group("dpwa.tables")
            with group.lock:
                group.enter_view(GroupView((worker.connection.collectives.contacts.own,), 1), 1)
        for _ in range(5):
            tables[0].add(np.ones(4), sync=True)
        tables[1].add(np.full(4, 7.0), sync=True)
        monkeypatch.undo()

        def are_together():
            tables[1].get()
            return all(len(worker.tables.members) == 2 for worker in made)

        with pytest.raises(TableLostError, match="The additions of w2 in the meantime are lost"):
            eventually(are_together)
        eventually(are_together)
        # Those of the one that has done more go on.
        assert [table.get().tolist() for table in tables] == [[5.0] * 4] * 2
        tables[1].add(np.ones(4), sync=True)
        assert tables[0].get().tolist() == [6.0] * 4


def test_a_connection_has_tables_once():
    with workers(1) as made, pytest.raises(UserError, match="already has a Tables object"):
        Tables(made[0].connection)


def test_tables_of_a_closed_node_say_so():
    with workers(1) as made:
        table = made[0].tables.array(3)
        made[0].connection.close()
        with pytest.raises(ClosedError):
            table.get()


def test_tables_must_be_the_same_on_all_workers():
    with workers(2) as made:

        def use(worker):
            table = worker.tables.array(10 + int(worker.name[1]))
            while True:  # whoever was earlier hears of it later
                table.get()
                time.sleep(0.01)

        def task(worker):
            with pytest.raises(MismatchError, match=r"rows 1\d here, 1\d elsewhere"):
                use(worker)

        on_all(made, task)


@pytest.mark.parametrize("late", [0, 1])
def test_a_worker_that_makes_another_table_and_ends_at_once_is_heard(late, monkeypatch):
    with workers(2) as made, ThreadPoolExecutor(1) as threads:
        other, worker = made[late], made[1 - late]
        make = other.engine.make

        def make_later(*order):
            time.sleep(0.2)
            make(*order)

        monkeypatch.setattr(other.engine, "make", make_later)

        def use():
            table, end = worker.tables.array(5), time.monotonic() + 20.0
            while time.monotonic() < end:
                table.get()
                time.sleep(0.01)

        used = threads.submit(use)
        eventually(lambda: 0 in other.store.tables)
        with pytest.raises(MismatchError, match="rows 7 here, 5 elsewhere"):
            other.tables.array(7)
        other.connection.close()
        with pytest.raises(MismatchError, match="rows 5 here, 7 elsewhere"):
            used.result(30.0)


def test_who_does_not_come_to_a_barrier_is_not_waited_for_forever_and_stays():
    with workers(2) as made:
        tables = vectors(made, 4)
        with pytest.raises(TableTimeoutError, match=r"a barrier took longer .* Absent members: w2"):
            made[0].tables.barrier(timeout_s=0.3)
        tables[1].add(np.ones(4))
        assert made[0].tables.members == ("w1", "w2")
        barrier(made)
        assert tables[0].get().tolist() == [1] * 4


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.get([0, 10]), r"row_ids\[1\] is 10, expected 0 to 9"),
        (lambda t: t.get(-1), r"row_ids\[0\] is -1"),
        (lambda t: t.add(np.ones((1, 3)), [10]), r"row_ids\[0\] is 10"),
        (lambda t: t.add(np.ones(3)), r"got shape \(3,\), expected \(10, 3\)"),
        (lambda t: t.add(np.ones((2, 3)), [1]), r"expected \(1, 3\)"),
        (lambda t: t.add([["a"] * 3] * 10), "expected numbers"),
    ],
)
def test_mistakes_are_told_where_they_are_made(act, message):
    with workers(1) as made:
        table = made[0].tables.matrix(10, 3)
        with pytest.raises(UserError, match=message):
            act(table)
        assert not table.get().any()


def test_impossible_tables_are_refused():
    with workers(1) as made:
        tables = made[0].tables
        for wrong, message in [
            ({"size": -1}, "rows: expected a whole number of at least 0"),
            ({"size": 3, "dtype": "int8"}, "dtype: "),
            ({"size": 3, "updater": "sgdd"}, "sgd"),
            ({"size": 3, "replicas": -1}, "replicas: "),
            ({"size": 3, "colour": 1}, "colour: "),
        ]:
            with pytest.raises(UserError, match=message):
                tables.array(**wrong)
        assert tables.array(3).get().tolist() == [0] * 3


def test_a_closed_table_says_so():
    with workers(1) as made:
        table = made[0].tables.array(3)
        made[0].tables.close()
        for act in (table.get, lambda: table.add(np.ones(3)), lambda: made[0].tables.array(3)):
            with pytest.raises(ClosedError):
                act()


def test_messages_of_strangers_and_nonsense_of_members_do_nothing():
    with workers(2) as made:
        tables = vectors(made, 4)
        own = made[0].connection.collectives.contacts.own
        view = made[0].connection.collectives.group("dpwa.tables").view
        fields = {
            "request": 0,
            "name": "w1",
            "incarnation": own.incarnation,
            "view": view.identity,
            "table": 0,
            "shard": 1,
            "client": "w1:1",
            "counter": 9,
            "rows": 1000,
            "is_first": False,
            "contained": 0,
            "start": 0,
            "nbytes": 8,
            "number": 10**6,
        }
        node = made[0].connection.node
        for changes in [
            {},
            {"incarnation": b"stranger"},
            {"view": bytes(8)},
            {"number": 0},
            {"table": 100},
            {"shard": 127},
            {"contained": 1},
        ]:
            message = TableAddition(**{**fields, **changes})
            node.tx.send_message("w2", message, b"12345678")
        node.tx.send_message(
            "w2",
            TableAdded(
                **{
                    k: fields[k]
                    for k in ("request", "name", "incarnation", "view", "table", "client")
                },
                shard=1,
                counter=1,
                refused="",
                number=10**6,
            ),
        )
        time.sleep(0.2)
        tables[0].add(np.ones(4), sync=True)
        assert tables[1].get().tolist() == [1] * 4


def test_bytes_of_additions_are_counted_as_sent_and_received():
    def add(worker):
        table = worker.tables.matrix(50, 1000)
        worker.tables.barrier()
        before = worker.connection.metrics()
        worker.tables.barrier()  # nothing arrives before both have counted
        if worker.name == "w1":
            for _ in range(4):
                table.add(np.ones((50, 1000), np.float32))
        worker.tables.barrier()
        after = worker.connection.metrics()
        worker.tables.barrier()
        kinds = "sent", "received"
        return [after[f"dpwa/{k}_bytes"] - before[f"dpwa/{k}_bytes"] for k in kinds]

    with workers(2) as made:
        (sent, _), (_, received) = on_all(made, add)
    shard = 50 * 1000 * 4 / 2  # the other node has half of the rows, and a copy of the rest
    assert sent >= 4 * shard
    assert received == pytest.approx(sent, rel=0.1)
