"""What once went wrong with tables, and must not again."""

import threading
import time
from copy import deepcopy

import numpy as np
import pytest
from support.nodes import at_once, eventually
from support.table_states import fingerprint
from support.times import HANGS_AFTER_S
from test_tables_between_nodes import Worker, barrier, matrices, on_all, vectors, workers

from dpwa.errors import ProtocolError, TableLostError, TableTimeoutError, UserError
from dpwa.policy.group_views import GroupView
from dpwa.tables import operations, requests, updaters
from dpwa.tables import replication as replication_module
from dpwa.tables.key_value import shard_of_keys
from dpwa.tables.table import SyncedArray
from dpwa.tables.updaters import Updater, register_updater
from dpwa.wire.tables import TableAdded


@pytest.fixture
def dislikes_seven(monkeypatch):
    """The name of an updater that fails on additions with a seven."""
    monkeypatch.setattr(updaters, "_REGISTRY", deepcopy(updaters._REGISTRY))

    @register_updater("dislikes_seven")
    class DislikesSeven(Updater):
        def step(self, values, state, delta):
            if (delta == 7).any():
                raise ValueError("a seven")
            values += delta

    return "dislikes_seven"


def group_of(worker):
    return worker.connection.collectives.group("dpwa.tables")


def has_settled(worker, count):
    return len(worker.tables.members) == count and worker.user.pending.present.is_ready


def test_an_updater_that_fails_is_told_and_loses_nothing_else(dislikes_seven):
    with workers(2, {"collective_timeout_s": 3.0}) as made:
        wrong, right = vectors(made, 4, updater=dislikes_seven)[0], vectors(made, 4)[0]
        wrong.add(np.full(4, 7.0))
        right.add(np.ones(4))
        right.add(np.ones(4), sync=True)
        assert right.get().tolist() == [2] * 4
        with pytest.raises(ProtocolError, match=r"'dislikes_seven' failed: ValueError\('a seven'"):
            wrong.get()
        wrong.add(np.ones(4), sync=True)
        assert wrong.get().tolist() == [1] * 4
        assert made[0].user.pending.waiting_bytes == 0


def test_what_comes_with_an_addition_that_fails_outlives_a_node(dislikes_seven):
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        wrong, right = vectors(made, 3, updater=dislikes_seven), vectors(made, 3)
        with made[0].user.pending.changed:  # both are taken at once
            wrong[0].add(np.full(3, 7.0))
            right[0].add(np.ones(3))
        right[0].add(np.full(3, 10.0), sync=True)
        made[2].kill()
        eventually(lambda: all(has_settled(worker, 2) for worker in made[:2]))
        assert right[1].get().tolist() == [11] * 3
        with pytest.raises(ProtocolError, match="a seven"):
            wrong[0].get()
        assert wrong[1].get().tolist() == [0] * 3


def test_a_refusal_that_was_lost_with_its_primary_is_said_by_the_next_one(dislikes_seven):
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        *_, table = vectors(made, 3, updater=dislikes_seven)
        first = made[0]
        stream = first.mail.stream("w3")
        send = stream._send

        def lose_answers(message, data):
            if not isinstance(message, TableAdded):
                send(message, data)

        stream._send = lose_answers
        table.add([7.0], [0])
        table.add([1.0], [0])
        replication, copy = first.replication, first.store.copies[0, 0]
        eventually(lambda: replication._on_hold or copy.state.additions)
        made[0].kill()
        eventually(lambda: all(has_settled(worker, 2) for worker in made[1:]))
        with pytest.raises(ProtocolError, match="a seven"):
            table.get()
        assert table.get().tolist() == [1, 0, 0]


@pytest.fixture
def fails_half_way(monkeypatch):
    """The name of an updater that fails on additions with a seven, after it has changed some."""
    monkeypatch.setattr(updaters, "_REGISTRY", deepcopy(updaters._REGISTRY))

    @register_updater("fails_half_way")
    class FailsHalfWay(Updater):
        state_names = ("counts",)

        def step(self, values, state, delta):
            for index, one in enumerate(delta):
                if one == 7:
                    raise ValueError("a seven")
                state["counts"][index] += 1
                values[index] += one

    return "fails_half_way"


def copies_of(made, key=(0, 0)):
    """Return a fingerprint of each copy of a shard, by node."""
    stores = {worker.name: worker.store for worker in made}
    return {n: fingerprint(s.copies[key].state) for n, s in stores.items() if key in s.copies}


def test_an_addition_that_the_primary_cannot_apply_is_refused_and_changes_no_copy(fails_half_way):
    with workers(3) as made:
        tables = vectors(made, 9, updater=fails_half_way)
        for rows in (None, range(9)):
            tables[1].add([1, 2, 7] * 3, rows)
            with pytest.raises(ProtocolError, match=r"'fails_half_way' failed: ValueError\('a sev"):
                tables[1].get()
            assert tables[0].get().tolist() == [0] * 9
        tables[1].add(np.ones(9), sync=True)
        assert tables[0].get().tolist() == [1] * 9
        assert len(set(copies_of(made).values())) == 1


def no_memory(*_, **__):
    raise MemoryError


def once(act, then):
    """Return what does something else the first time."""
    acts = [act]
    return lambda *args, **options: (acts.pop() if acts else then)(*args, **options)


@pytest.mark.parametrize("is_missed", [False, True])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_replica_that_misses_an_addition_has_its_copy_made_anew(is_missed, has_room, monkeypatch):
    """It cannot apply it, or never hears of it; perhaps there is no room for a copy at first."""
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        table, *others = vectors(made, 3)
        table.add(np.ones(3), sync=True)
        replication = made[1].replication  # the replica of shard 0
        if not has_room:
            store = made[1].store
            monkeypatch.setattr(replication_module, "RETRY_S", 0.1)
            monkeypatch.setattr(store, "_place", once(no_memory, store._place))
        if is_missed:
            with monkeypatch.context() as patch:
                patch.setattr(replication, "replicate", lambda message, data: None)
                table.add(np.ones(3))
                time.sleep(0.1)
        else:
            monkeypatch.setattr(replication, "_apply", once(no_memory, replication._apply))
        table.add(np.ones(3), sync=True)
        expected = 3 if is_missed else 2
        copies = copies_of(made)
        assert copies["w1"] == copies["w2"]
        made[0].kill()
        eventually(lambda: all(has_settled(worker, 2) for worker in made[1:]))
        assert others[0].get().tolist() == others[1].get().tolist() == [expected] * 3


def test_who_has_no_memory_for_its_copies_says_so_and_makes_them_when_it_has(monkeypatch, caplog):
    with workers(3, {"collective_timeout_s": 1.0}) as made:
        barrier(made)
        monkeypatch.setattr(replication_module, "RETRY_S", 0.05)
        store = made[1].store
        with monkeypatch.context() as patch, caplog.at_level("WARNING", "dpwa.tables"):
            patch.setattr(store, "_place", no_memory)
            table, *_ = vectors(made, 3)
            table.add([1.0], [1])  # of which it is the primary
            with pytest.raises(ProtocolError, match="w2 has too little memory for shard 1"):
                table.get([0])
            with pytest.raises(
                TableTimeoutError, match=r"acknowledgement of: shard 0 of table 0 on w1, "
            ):
                table.add([1.0], [0], sync=True)  # of which it has a copy
            (told,) = [record.getMessage() for record in caplog.records]
            assert "has too little memory for shard 0 of table 0" in told
        made[0].user.timeout_s = HANGS_AFTER_S  # from here on nothing is to be late
        table.add(np.ones(3), sync=True)
        assert table.get().tolist() == [2, 1, 1]
        assert store.copies.keys() == {(0, 0), (0, 1)}


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_copy_that_has_missed_an_addition_applies_none_after_it(is_heard, monkeypatch):
    """So what stands in until it is made anew is what the primary had at some time."""
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        table, *others = vectors(made, 3)
        table.add(np.ones(3), sync=True)
        primary, replica = (worker.replication for worker in made[:2])
        monkeypatch.setattr(primary, "_send_state", lambda key, target: None)
        if is_heard:
            monkeypatch.setattr(replica, "_apply", no_memory)
        else:
            monkeypatch.setattr(replica, "replicate", once(lambda *_: None, replica.replicate))
        table.add([1, 0, 0])
        table.add([2, 0, 0])
        copies = made[1].store.copies  # for a moment there may be none
        eventually(lambda: (copy := copies.get((0, 0))) is not None and copy.incoming is not None)
        assert not made[0].user.pending.is_flushed(made[0].user.pending.marks())
        monkeypatch.undo()
        made[0].kill()
        eventually(lambda: all(has_settled(worker, 2) for worker in made[1:]))
        assert [other.get().tolist() for other in others] == [[1, 1, 1]] * 2


def test_an_addition_is_acknowledged_when_all_replicas_have_it(monkeypatch):
    with workers(3) as made:
        table, *_ = vectors(made, 3, replicas=2)
        late = made[2].replication
        replicate, held_back = late.replicate, []
        monkeypatch.setattr(late, "replicate", lambda *args: held_back.append(args))
        table.add([1, 0, 0])
        eventually(lambda: held_back)
        eventually(lambda: made[1].store.copies[0, 0].state.additions == 1)
        time.sleep(0.1)
        pending = made[0].user.pending
        assert not pending.is_flushed(pending.marks())
        for args in held_back:
            made[2].engine.submit(lambda args=args: replicate(*args))
        made[0].user.flush(0, made[0].user.deadline())
        assert len(set(copies_of(made).values())) == 1


def test_who_uses_a_table_of_which_its_primary_has_not_heard_yet_waits():
    with workers(3) as made:
        first, second, third = made
        barrier(made)
        say, held_back = first.mail.say, []

        def say_later_to_the_second(name, item):
            if name == "w2":
                held_back.append(item)
            else:
                say(name, item)

        first.mail.say = say_later_to_the_second
        third.engine.make = lambda number, spec: None  # as if the additions had overtaken it
        tables = on_all([made[0], made[2]], lambda worker: worker.tables.array(3))
        tables[1].add(np.ones(3))
        reading = threading.Thread(target=tables[1].get)
        reading.start()
        time.sleep(0.2)
        assert not second.store.tables
        first.mail.say = say
        for item in held_back:
            first.engine.submit(lambda item=item: say("w2", item))
        reading.join(10.0)
        tables[1].add(np.ones(3), sync=True)
        assert tables[0].get().tolist() == [2] * 3


def test_a_primary_that_dies_while_copies_are_made_takes_nothing_acknowledged_along():
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        first, second, third = made
        tables = vectors(made, 3)
        for table in tables[:2]:
            table.add(np.ones(3), sync=True)
        third.close()
        eventually(lambda: all(has_settled(worker, 2) for worker in made[:2]))
        dying, living = (w.replication for w in made[:2])
        dying._send_state = lambda key, target: None
        living.replicate = lambda message, data: None  # the copies come to differ
        tables[0].add([5, 0, 0])
        time.sleep(0.2)
        again = Worker("w3", first.connection.node.config)
        made.append(again)
        try:
            again.tables.wait_for_all()
            eventually(lambda: has_settled(second, 3))
            del living.replicate
            copy = made[1].store.copies.get((0, 0))
            assert copy is None or not copy.state.is_whole  # the only one is the primary's
            first.kill()
            eventually(lambda: "w1" not in second.tables.members and has_settled(second, 2))
            values = tables[1].get()
            assert values[1:].tolist() == [2, 2]
            assert values[0] in (2, 7)  # the five was never acknowledged
        finally:
            again.close()


def test_a_read_may_take_long_as_long_as_bytes_come(monkeypatch):
    send_piece, sent = requests.ReadAnswer._send_piece, []

    def slowly(answer):
        now = time.monotonic()
        if sent and now - sent[-1] < 0.3:
            return False
        sent.append(now)  # first: who reads may be done before this thread goes on
        is_sent = send_piece(answer)
        if not is_sent:
            sent.pop()
        return is_sent

    monkeypatch.setattr(requests.ReadAnswer, "_send_piece", slowly)
    with workers(2, {"collective_timeout_s": 60.0, "transport": "tcp"}) as made:
        table, _ = vectors(made, 4_000_000)
        assert table.get().shape == (4_000_000,)
        assert sent[-1] - sent[0] > 2 * operations.ASK_AGAIN_S


def test_a_read_ends_though_each_piece_takes_longer_than_to_ask_again(monkeypatch):
    monkeypatch.setattr(operations, "ASK_AGAIN_S", 0.05)
    send_piece = requests.ReadAnswer._send_piece

    def slowly(answer):
        now = time.monotonic()
        is_early = now - vars(answer).setdefault("moved", now) < 0.3
        if not is_early:
            answer.moved = now
        return not is_early and send_piece(answer)

    monkeypatch.setattr(requests.ReadAnswer, "_send_piece", slowly)
    with workers(2, {"collective_timeout_s": 20.0, "transport": "tcp"}) as made:
        table, _ = vectors(made, 1_000_000)
        assert table.get().shape == (1_000_000,)


@pytest.mark.parametrize("default", [np.inf, -np.inf, np.nan])
def test_defaults_are_finite(default):
    with workers(1, {"collective_timeout_s": 1.0}) as made:
        with pytest.raises(UserError, match="default: expected a finite number"):
            made[0].tables.key_value(default=default)
        assert made[0].tables.key_value(default=3).get([1]).tolist() == [3]


def test_reads_end_while_another_thread_adds(monkeypatch):
    monkeypatch.setattr(operations, "MAX_WAITING_BYTES", 1_000_000)
    with workers(2, {"collective_timeout_s": 4.0}) as made:
        table, _ = matrices(made, 1000, 64)
        table.add(np.ones((1, 64)), [1])
        is_over = threading.Event()

        def add():
            while not is_over.is_set():
                table.add(np.ones((100, 64)), np.arange(0, 1000, 10))

        def read():
            try:
                eventually(lambda: table.get([0]).min() > 3)
                for _ in range(3):
                    assert table.get([1]).tolist() == [[1] * 64]
            finally:
                is_over.set()

        at_once([add, read])
        assert table.get([0]).min() == table.get([990]).max() > 3


def test_a_shared_variable_adds_its_change_once_though_a_read_fails(monkeypatch):
    with workers(1) as made:
        table = made[0].tables.array(4)
        variable = SyncedArray(table, (4,))
        variable.value += 1

        def get():
            raise TableTimeoutError("waiting for an answer took longer than the time limit")

        with monkeypatch.context() as patch:
            patch.setattr(table, "get", get)
            with pytest.raises(TableTimeoutError):
                variable.sync()
        assert variable.sync().tolist() == [1] * 4
        assert table.get().tolist() == [1] * 4


def test_tables_are_cut_in_the_same_way_in_every_view():
    with workers(3, {"collective_timeout_s": 4.0}) as made:
        on_all(made, lambda worker: worker.tables.wait_for_all())
        groups = [group_of(worker) for worker in made]
        own = [worker.connection.collectives.contacts.own for worker in made]
        for group, members in zip(groups, (own[:2], own[:2], own[2:]), strict=True):
            group.discovery.seek = lambda *_: None  # the parts do not find each other yet
            with group.lock:
                group.enter_view(GroupView(tuple(members), 1), 1)
        alone = made[2].tables.matrix(12, 1)
        table, _ = matrices(made[:2], 12, 1)
        for group in groups:
            del group.discovery.seek

        def are_together():
            alone.get([0])
            return all(has_settled(worker, 3) for worker in made)

        eventually(are_together)
        table.add(np.arange(12.0)[:, None], sync=True)
        assert alone.get([7, 3]).tolist() == [[7], [3]]
        alone.add([[100.0]], [7], sync=True)
        assert table.get().ravel().tolist() == [*range(7), 107, *range(8, 12)]


def test_keys_need_not_lie_side_by_side_in_memory():
    with workers(2, {"collective_timeout_s": 2.0}) as made:
        table, other = on_all(made, lambda worker: worker.tables.key_value())
        elsewhere = np.flatnonzero(shard_of_keys(np.arange(100), 2) == 1)[:6]
        keys = np.stack([elsewhere, elsewhere + 1000], axis=1)[:, 0]
        assert not keys.flags.c_contiguous
        table.add(keys, np.arange(6.0), sync=True)
        assert table.get(keys).tolist() == list(range(6))
        assert other.get(keys.tolist()).tolist() == list(range(6))


def test_in_step_a_read_that_timed_out_is_in_step_when_called_again():
    with workers(2, {"collective_timeout_s": 0.5}, sync=True) as made:
        tables = dict(zip(("w1", "w2"), vectors(made, 2), strict=True))
        slow = made[1].user
        slow.timeout_s, read, delays, timeouts = 10.0, slow.read_rows, [0.8], []

        def read_late(*args):
            time.sleep(delays.pop() if delays else 0)
            return read(*args)

        slow.read_rows = read_late

        def get(worker):
            for _ in range(5):
                try:
                    return tables[worker.name].get().tolist()
                except TableTimeoutError:
                    timeouts.append(worker.name)
            raise AssertionError("never in time")

        def task(worker):
            found = []
            for _ in range(4):
                tables[worker.name].add(np.ones(2))
                found.append(get(worker))
            return found

        assert on_all(made, task) == [[[2.0 * i] * 2 for i in range(1, 5)]] * 2
        assert set(timeouts) == {"w1"}


def test_a_barrier_that_is_passed_just_after_its_timeout_counts_once():
    with workers(2, {"collective_timeout_s": 2.0}) as made:
        vectors(made, 4)
        late = made[0].user
        wait = late.wait_for

        def too_short(check, deadline, what):
            if what != "waiting in a barrier":
                return wait(check, deadline, what)
            eventually(lambda: late.pending.present.passed)  # after the last look
            raise TableTimeoutError("waiting in a barrier took longer than the time limit")

        def first():
            late.wait_for = too_short
            with pytest.raises(TableTimeoutError):
                made[0].tables.barrier()
            late.wait_for = wait

        at_once([first, made[1].tables.barrier])
        made[0].tables.barrier(timeout_s=1.0)  # the same, again
        with pytest.raises(TableTimeoutError):
            made[0].tables.barrier(timeout_s=0.2)
        barrier(made)


def test_a_worker_that_was_left_behind_and_only_adds_is_let_in_again():
    with workers(3, {"collective_timeout_s": 5.0}) as made:
        tables = vectors(made, 3)
        group = group_of(made[2])
        group.leave_group()
        assert group.is_evicted

        def is_back():
            tables[2].add(np.ones(3))
            return not group.is_evicted and has_settled(made[0], 3)

        eventually(is_back, timeout_s=5.0, every_s=0.1)
        tables[2].add(np.ones(3), sync=True)
        assert tables[0].get().min() >= 1


def test_who_is_left_out_and_let_in_by_nobody_is_told_so():
    with workers(2, {"collective_timeout_s": 1.0}) as made:
        _, table = vectors(made, 3)
        made[0].kill()
        group_of(made[1]).leave_group()
        with pytest.raises(TableLostError, match="the other nodes have continued without w2"):
            table.get()


def test_a_table_that_was_not_made_in_time_may_be_made_again():
    with workers(2, {"collective_timeout_s": 0.5}) as made:
        with pytest.raises(TableTimeoutError, match="making table 0 took longer than"):
            made[1].tables.array(3)
        tables = vectors(made, 3)
        tables[1].add(np.ones(3), sync=True)
        assert tables[0].get().tolist() == [1] * 3
