from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.interrupts import Moments
from support.nodes import again_and_again
from support.times import SetClock
from support.writers import filling

from dpwa.data.layout import Layout
from dpwa.data.shared_memory import SharedMemory
from dpwa.data.snapshot import SnapshotPool
from dpwa.errors import UserError
from dpwa.types import TrainingProgress

LAYOUT = Layout.of_bytes()
LEASE_S = 5.0


@pytest.fixture(params=["private", "shared"])
def make_pool(request, tmp_path):
    """Make pools whose slots are private memory, or files that other processes can map."""
    opened = []

    def make(slots=3, clock=None):
        shared = SharedMemory(tmp_path) if request.param == "shared" else None
        if shared is not None:
            opened.append(shared)
        pool = SnapshotPool(clock or SetClock(), LEASE_S, slots, shared)
        opened.append(pool)
        return pool

    yield make
    for closeable in reversed(opened):
        closeable.close()
    assert not list(tmp_path.iterdir())


def publish(pool, value, nbytes=8):
    progress = TrainingProgress(clock=float(value))
    snapshot = pool.publish_snapshot(LAYOUT, nbytes, progress, filling(value % 256))
    return None if snapshot is None else pool.at(snapshot.version)


def test_versions_go_on_from_a_higher_one_and_never_fall(make_pool):
    pool = make_pool()
    for version, expected in ((7, 8), (3, 9), (9, 10), (0, 11)):
        pool.resume(version)
        with publish(pool, 1) as lease:
            assert lease.version == expected


def test_a_round_without_memory_is_left_out_with_one_warning_and_the_first_is_an_error(caplog):
    pool = SnapshotPool(SetClock(), LEASE_S, 3)
    with pytest.raises(UserError, match="too little memory for a snapshot of"):
        publish(pool, 1, nbytes=2**62)
    with publish(pool, 1):
        for _ in range(2):
            assert publish(pool, 2, nbytes=2**62) is None
    assert pool.skipped == 2
    assert len([r for r in caplog.records if "W092" in r.getMessage()]) == 1
    pool.close()


class LateCopy:
    """What a device does when it likes: the bytes are there once `finish` was called."""

    def __init__(self, data, value):
        self.data, self.value, self.finished = data, value, False

    def finish(self):
        self.data.fill(self.value)
        self.finished = True

    def is_ready(self):
        return self.finished

    def wait_complete(self):
        self.finish()
        return True


def publish_late(pool, value):
    copies = []

    def write(data):
        copies.append(LateCopy(data, value))
        return copies[0]

    return pool.publish_snapshot(LAYOUT, 8, TrainingProgress(clock=float(value)), write), copies[0]


def test_before_the_first_snapshot_there_is_none(make_pool):
    assert make_pool().newest() is None
    assert make_pool().version == 0


def test_the_newest_snapshot_is_leased_with_its_standing_and_version(make_pool):
    pool = make_pool()
    publish(pool, 1).release()
    publish(pool, 2).release()
    with pool.newest() as snapshot:
        assert snapshot.version == 2
        assert snapshot.progress.clock == 2.0
        assert snapshot.data.tolist() == [2] * 8


def test_a_leased_snapshot_stays_whole_however_often_is_published(make_pool):
    pool = make_pool()
    publish(pool, 1).release()
    lease = pool.newest()
    for value in range(2, 50):
        publish(pool, value).release()
    assert lease.snapshot.data.tolist() == [1] * 8
    assert pool.version == 49


def test_with_every_slot_leased_the_round_is_skipped_and_counted(make_pool):
    pool = make_pool(slots=3)
    leases = [publish(pool, value) for value in (1, 2, 3)]
    assert publish(pool, 4) is None
    assert (pool.version, pool.skipped) == (3, 1)
    leases[0].release()
    assert publish(pool, 5).snapshot.version == 4


def test_releasing_twice_gives_back_once(make_pool):
    pool = make_pool(slots=2)
    first = publish(pool, 1)
    first.release()
    first.release()
    held = pool.newest()
    publish(pool, 2).release()
    assert publish(pool, 3) is None  # `held` still counts
    held.release()
    assert publish(pool, 4) is not None


def test_a_failed_write_publishes_nothing_and_loses_no_slot(make_pool):
    pool = make_pool(slots=2)
    publish(pool, 1).release()

    def fail(data):
        raise RuntimeError("no")

    for _ in range(5):
        with pytest.raises(RuntimeError):
            pool.publish_snapshot(LAYOUT, 8, TrainingProgress(clock=9.0), fail)
    assert pool.newest().snapshot.version == 1
    assert publish(pool, 2).snapshot.version == 2


def test_the_size_may_change_between_snapshots(make_pool):
    pool = make_pool()
    publish(pool, 1, nbytes=8).release()
    publish(pool, 2, nbytes=1000).release()
    assert pool.newest().snapshot.data.nbytes == 1000


def test_a_reader_that_keeps_a_snapshot_for_too_long_loses_the_slot_but_not_the_bytes(make_pool):
    clock = SetClock()
    pool = make_pool(slots=2, clock=clock)
    slow = publish(pool, 1)
    publish(pool, 2).release()
    assert publish(pool, 3) is None  # the lease has not run out
    clock.time += LEASE_S + 1
    for value in range(4, 20):
        publish(pool, value).release()
    assert slow.snapshot.data.tolist() == [1] * 8
    assert pool.report()["lost_slots"] == 1
    slow.release()
    publish(pool, 20).release()
    assert pool.report()["lost_slots"] == 0


def test_slots_that_were_lost_are_bounded_too(make_pool):
    clock = SetClock()
    pool = make_pool(slots=2, clock=clock)
    kept = []
    for value in range(50):
        clock.time += LEASE_S + 1
        lease = publish(pool, value)
        if lease is not None:
            kept.append(lease)
    assert len(kept) == 4  # two slots, and as many that were lost
    report = pool.report()
    assert (report["slots"], report["lost_slots"], report["slot_bytes"]) == (2, 2, 16)


def test_memory_is_taken_as_it_is_needed(make_pool):
    pool = make_pool(slots=8)
    for value in range(20):
        publish(pool, value).release()
    assert pool.report()["slots"] == 2


def test_a_lease_may_end_later_than_it_is_released(make_pool):
    pool, sent = make_pool(slots=2), []
    publish(pool, 1).release(once=lambda: bool(sent))
    publish(pool, 2).release()
    assert publish(pool, 3) is None
    sent.append(True)
    assert publish(pool, 4) is not None


@pytest.mark.parametrize("look_up", [SnapshotPool.newest, lambda pool: pool.at(2)])
def test_a_snapshot_that_is_still_being_copied_is_not_there_yet(make_pool, look_up):
    pool = make_pool()
    publish(pool, 1).release()
    late, copy = publish_late(pool, 2)
    with pool.newest() as snapshot:
        assert (snapshot.version, snapshot.data.tolist()) == (1, [1] * 8)
    assert publish(pool, 3) is None  # publishing never waits, not even for a device
    assert (pool.version, pool.skipped, pool.at(2)) == (1, 1, None)
    copy.finish()
    with look_up(pool) as snapshot:
        assert (snapshot.version, snapshot.data.tolist(), snapshot.is_finite) == (2, [2] * 8, True)
    assert late.data.tolist() == [2] * 8


def test_settling_waits_for_what_was_published(make_pool):
    pool = make_pool()
    late, _ = publish_late(pool, 1)
    assert pool.newest() is None
    pool.settle()
    assert late.data.tolist() == [1] * 8
    assert pool.newest().snapshot.version == 1
    pool.settle()


def test_a_copy_that_fails_publishes_nothing_and_loses_no_slot(make_pool):
    class Broken(LateCopy):
        def wait_complete(self):
            raise RuntimeError("the device is gone")

    pool = make_pool(slots=2)
    publish(pool, 1).release()
    for _ in range(3):
        pool.publish_snapshot(LAYOUT, 8, TrainingProgress(clock=2.0), lambda data: Broken(data, 2))
        with pytest.raises(RuntimeError):
            pool.settle()
        assert pool.newest().snapshot.version == 1
    pool.newest().release()
    assert pool.version == 1


def test_closing_waits_for_a_device_that_still_writes(make_pool):
    pool = make_pool()
    _, copy = publish_late(pool, 1)
    pool.close()
    assert copy.finished


def test_a_closed_pool_publishes_nothing(make_pool):
    pool = make_pool()
    publish(pool, 1).release()
    pool.close()
    assert publish(pool, 2) is None


def test_an_older_snapshot_is_there_until_its_slot_is_written_again(make_pool):
    pool = make_pool(slots=3)
    for value in (1, 2, 3):
        publish(pool, value).release()
    with pool.at(2) as snapshot:
        assert snapshot.version == 2
        assert (snapshot.data == 2).all()
        for value in range(4, 8):
            publish(pool, value).release()
        assert (snapshot.data == 2).all()  # as long as it is leased
    assert pool.at(1) is None
    assert pool.at(8) is None
    publish(pool, 8).release()
    publish(pool, 9).release()
    assert pool.at(2) is None


def test_the_layout_is_that_of_the_newest_snapshot(make_pool):
    pool = make_pool()
    assert pool.layout() is None
    publish(pool, 1).release()
    assert pool.layout() is LAYOUT
    assert pool.most_slots == 3


def test_a_pool_needs_two_slots(make_pool):
    with pytest.raises(ValueError, match="at least 2 slots"):
        make_pool(slots=1)


def test_no_reader_ever_sees_a_torn_snapshot(make_pool):
    pool = make_pool()
    publish(pool, 0, nbytes=200_000).release()
    torn = []

    def read():
        with pool.newest() as snapshot:
            if np.ptp(snapshot.data) or snapshot.data[0] != snapshot.progress.clock % 256:
                torn.append(snapshot.version)

    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(again_and_again(read))
        for value in range(1, 2_000):
            lease = publish(pool, value, nbytes=200_000)
            if lease is not None:
                lease.release()
    assert not torn


class PoolMachine(RuleBasedStateMachine):
    """Any order of publishing, leasing and releasing."""

    def __init__(self):
        super().__init__()
        self.pool = SnapshotPool(SetClock(), LEASE_S, slots=3)
        self.leases = []
        self.value = 0

    @rule(keep=st.booleans())
    def publish(self, keep):
        self.value += 1
        lease = publish(self.pool, self.value)
        if lease is not None:
            assert lease.snapshot.progress.clock == self.value
            if keep:
                self.leases.append(lease)
            else:
                lease.release()

    @rule()
    def read(self):
        lease = self.pool.newest()
        if lease is not None:
            assert lease.snapshot.version == self.pool.version
            self.leases.append(lease)

    @rule(index=st.integers(0, 100))
    def release(self, index):
        if self.leases:
            self.leases.pop(index % len(self.leases)).release()

    @invariant()
    def every_lease_reads_what_was_published(self):
        for lease in self.leases:
            expected = lease.snapshot.progress.clock % 256
            assert lease.snapshot.data.tolist() == [expected] * 8

    @invariant()
    def versions_never_go_back(self):
        assert self.pool.version + self.pool.skipped == self.value


TestPoolMachine = PoolMachine.TestCase


def test_an_interrupt_while_the_layout_is_read_keeps_no_slot(make_pool):
    pool, moments = make_pool(slots=2), Moments()
    publish(pool, 1).release()
    assert moments.watch(pool.layout) is LAYOUT
    for moment in [*moments.seen]:
        moments.interrupt(moment, pool.layout)
        publish(pool, 2).release()
        publish(pool, 3).release()
    assert pool.skipped == 0
