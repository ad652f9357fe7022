"""Shared memory between real processes, some of which are stopped or killed."""

import mmap
import os
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import again_and_again
from support.processes import descriptors, ended, start
from support.shared_memory import own_shm, told
from support.times import SetClock
from support.writers import filling

from dpwa.clock import SystemClock
from dpwa.data.layout import FINGERPRINT_BYTES, Layout, TensorSpec
from dpwa.data.peer_memory import NotMappedError, PeerMemory
from dpwa.data.segments import NONCE_BYTES, PAGE_BYTES, SegmentHeader
from dpwa.data.shared_memory import (
    NEWS_AT,
    NEWS_BYTES,
    NEWS_HEADER,
    UNFINISHED_FOR_S,
    SharedMemory,
    remains,
    sweep,
)
from dpwa.data.snapshot import SnapshotPool, _Slot
from dpwa.types import MAX_CLOCK, TrainingProgress

LAYOUT = Layout.of_bytes()
LEASE_S = 5.0
NBYTES = 200_000

__all__ = ["own_shm"]


@pytest.fixture
def shared(tmp_path):
    with SharedMemory(tmp_path) as shared:
        yield shared


@contextmanager
def pool_of(shared, slots=2, clock=None):
    with SnapshotPool(clock or SystemClock(), LEASE_S, slots, shared) as pool:
        yield pool


def publish(pool, nbytes=NBYTES, layout=LAYOUT):
    """Publish a snapshot whose bytes are its version; return that, or `None` when skipped."""
    value = (pool.version + 1) % 256
    snapshot = pool.publish_snapshot(layout, nbytes, TrainingProgress(clock=1.0), filling(value))
    return None if snapshot is None else snapshot.version


def mapped(shared, tmp_path):
    return PeerMemory(shared.name, shared.nonce, tmp_path)


def told_pinner(shared, tmp_path):
    return told("shared_memory.py", "pin_as_told", tmp_path, shared.name, shared.nonce.hex())


# The folder


def test_only_this_user_can_read_the_folder_and_nothing_is_left_when_it_is_closed(tmp_path):
    with SharedMemory(tmp_path) as shared, pool_of(shared) as pool:
        publish(pool)
        publish(pool)
        folder = tmp_path / shared.name
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {"board": 0o600, "slot-1": 0o600, "slot-2": 0o600}
    assert not list(tmp_path.iterdir())


def test_a_forked_child_that_closes_leaves_the_folder_to_its_parent(tmp_path):
    process = start("shared_memory.py", "fork_and_close", tmp_path)
    with ended(process):
        output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("0 0 board slot-1\n", "")
    assert not list(tmp_path.iterdir())


def test_a_root_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        SharedMemory(tmp_path / "nothing")


def test_room_that_is_not_there_is_an_os_error_and_room_that_was_given_can_be_used(own_shm):
    process = start(*own_shm("size=1m", "shared_memory.py", "exhaust", 300_000))
    with ended(process):
        output, errors = process.communicate(timeout=60)
    assert (output.split(), errors) == (["ENOSPC", "3", "3"], "")


# The header


@given(
    nonce=st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    fingerprint=st.binary(min_size=FINGERPRINT_BYTES, max_size=FINGERPRINT_BYTES),
    version=st.integers(0, 2**63 - 1),
    clock=st.floats(0.0, MAX_CLOCK),
    loss=st.none() | st.just(np.inf) | st.just(0.0) | st.floats(-1e308, allow_nan=False),
    is_finite=st.sampled_from([None, True, False]),
    nbytes=st.integers(0, 2**64 - 1),
)
def test_a_header_is_read_as_it_was_written(clock, loss, **fields):
    header = SegmentHeader(progress=TrainingProgress(clock=clock, loss=loss), **fields)
    with mmap.mmap(-1, PAGE_BYTES) as page:
        page.write(header.pack())
        assert SegmentHeader.unpack(page) == header


def test_a_page_of_something_else_is_no_header():
    with mmap.mmap(-1, PAGE_BYTES) as page:
        assert SegmentHeader.unpack(page) is None


# Mapping


def test_the_newest_snapshot_is_pinned_with_all_that_was_said_of_it(shared, tmp_path):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        assert memory.pin(LAYOUT) is None
        for version in range(1, 6):
            progress = TrainingProgress(clock=version / 2, loss=float(version))
            pool.publish_snapshot(LAYOUT, 8, progress, filling(7))
            with memory.pin(LAYOUT) as snapshot:
                assert (snapshot.version, snapshot.progress) == (version, progress)
                assert snapshot.is_finite is True
                assert snapshot.data.tolist() == [7] * 8


def test_what_is_pinned_cannot_be_changed_by_its_reader(shared, tmp_path):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        publish(pool)
        with memory.pin(LAYOUT) as theirs, pool.newest() as own:
            theirs.data.fill(9)
            assert (own.data == 1).all()


def test_a_snapshot_of_another_layout_or_size_is_not_pinned(shared, tmp_path):
    layout = Layout((TensorSpec("parameters", "uint8", (8,), 1),))
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        publish(pool, 8, LAYOUT)
        assert memory.pin(layout) is None
        publish(pool, 9, layout)
        assert memory.pin(layout) is None
        publish(pool, 8, layout)
        assert memory.pin(layout) is not None


def test_a_model_that_changes_its_size_is_mapped_anew_and_the_old_memory_given_up(shared, tmp_path):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        for nbytes in range(1, 50):
            publish(pool, nbytes)
            with memory.pin(LAYOUT) as snapshot:
                assert snapshot.data.nbytes == nbytes
        assert memory.nbytes <= 2 * (PAGE_BYTES + 50)


def test_what_is_pinned_outlives_both_ends(shared, tmp_path):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        publish(pool)
        lease = memory.pin(LAYOUT)
    assert (lease.snapshot.data == 1).all()
    lease.release()
    assert memory.pin(LAYOUT) is None


@pytest.mark.parametrize(
    "name", ["", "x", "../{}", "{}/../{}", "{}x", "{} ", "/{}", "dpwa-" + "g" * 32, "{}.new"]
)
def test_a_name_that_no_folder_has_is_not_mapped(shared, tmp_path, name):
    with pytest.raises(NotMappedError, match="name of the peer's shared folder is invalid"):
        PeerMemory(name.replace("{}", shared.name), shared.nonce, tmp_path)


def test_a_folder_that_is_not_there_is_not_mapped(shared, tmp_path):
    with pytest.raises(NotMappedError, match="No such file"):
        PeerMemory("dpwa-" + "0" * 32, shared.nonce, tmp_path)


def test_a_folder_with_another_nonce_is_not_mapped(shared, tmp_path):
    with pytest.raises(NotMappedError, match="a different node"):
        PeerMemory(shared.name, bytes(NONCE_BYTES), tmp_path)


def test_a_link_to_a_folder_is_not_mapped(shared, tmp_path):
    link = tmp_path / ("dpwa-" + "0" * 32)
    link.symlink_to(tmp_path / shared.name)
    with pytest.raises(NotMappedError, match="cannot be opened"):
        PeerMemory(link.name, shared.nonce, tmp_path)


@pytest.mark.parametrize("nbytes", [0, 24, PAGE_BYTES - 1])
def test_a_board_that_is_too_short_is_not_mapped(shared, tmp_path, nbytes):
    os.truncate(tmp_path / shared.name / "board", nbytes)
    with pytest.raises(NotMappedError, match="cannot be mapped"):
        mapped(shared, tmp_path)


def test_a_board_that_is_a_link_is_not_mapped(shared, tmp_path):
    board = tmp_path / shared.name / "board"
    board.rename(board.with_name("elsewhere"))
    board.symlink_to("elsewhere")
    with pytest.raises(NotMappedError, match="cannot be mapped"):
        mapped(shared, tmp_path)


def test_failing_to_map_leaves_no_file_open(shared, tmp_path):
    before = descriptors()
    for _ in range(3):
        with pytest.raises(NotMappedError):
            PeerMemory(shared.name, bytes(NONCE_BYTES), tmp_path)
    assert descriptors() == before


def test_a_slot_with_another_nonce_is_not_pinned(shared, tmp_path):
    """A file is the peer's only if it says so: its name alone proves nothing."""
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        publish(pool)
        with (tmp_path / shared.name / "slot-1").open("r+b") as slot:
            page = slot.read(PAGE_BYTES)
            at = page.index(shared.nonce)
            for place in range(at, at + NONCE_BYTES):
                slot.seek(place)
                slot.write(bytes([page[place] ^ 1]))
                slot.flush()
                assert memory.pin(LAYOUT) is None
                slot.seek(place)
                slot.write(page[place : place + 1])
                slot.flush()
        memory.pin(LAYOUT).release()


@pytest.mark.parametrize("nbytes", [0, 24, PAGE_BYTES - 1])
def test_a_segment_without_a_page_is_not_pinned_and_leaves_no_file_open(shared, tmp_path, nbytes):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        publish(pool)
        os.truncate(tmp_path / shared.name / "slot-1", nbytes)
        before = descriptors()
        assert memory.pin(LAYOUT) is None
        assert descriptors() == before


@pytest.fixture
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_how_much_is_mapped_may_be_asked_while_it_changes(shared, tmp_path):
    with pool_of(shared) as pool, mapped(shared, tmp_path) as memory:
        asked = []
        with again_and_again(lambda: asked.append(memory.nbytes)) as asking:
            for nbytes in range(1, 200):
                publish(pool, nbytes)
                memory.pin(LAYOUT).release()
            is_still_asking = asking.is_alive()
    assert is_still_asking
    assert max(asked) > 0


# Readers and publishers in processes of their own


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.slow)])
def test_a_pinned_slot_is_never_written(tmp_path, count):
    with told("shared_memory.py", "publish_as_told", tmp_path, NBYTES, 2) as publisher:
        name, nonce = publisher.tell("name")
        publisher.tell("publish_for_ever")
        versions, torn = set(), 0
        with PeerMemory(name, bytes.fromhex(nonce), tmp_path) as memory:
            while len(versions) < count:
                lease = memory.pin(LAYOUT)
                if lease is not None:
                    with lease as snapshot:
                        torn += (snapshot.data != snapshot.version % 256).any()
                        versions.add(snapshot.version)
        assert torn == 0


def test_what_a_killed_reader_had_pinned_is_free_at_once(shared, tmp_path):
    with pool_of(shared, slots=2) as pool:
        for _ in range(3):
            publish(pool)
            with told_pinner(shared, tmp_path) as reader:
                assert reader.tell("pin") == pool.version
                assert publish(pool) == pool.version
                assert publish(pool) is None
                reader.kill()
                assert publish(pool) == pool.version
        report = pool.report()
    assert (report["slots"], report["lost_slots"]) == (2, 0)


def test_a_stopped_reader_loses_the_slot_after_its_lease_but_not_the_bytes(shared, tmp_path):
    clock = SetClock()
    with pool_of(shared, 2, clock) as pool, told_pinner(shared, tmp_path) as reader:
        publish(pool)
        assert reader.tell("pin") == 1
        reader.process.send_signal(signal.SIGSTOP)
        assert publish(pool) == 2
        assert publish(pool) is None  # the lease has not run out
        clock.time += LEASE_S
        assert [publish(pool) for _ in range(20)] == list(range(3, 23))
        assert pool.report()["lost_slots"] == 1
        reader.process.send_signal(signal.SIGCONT)
        assert reader.tell("values") == [1]
        reader.tell("release")
        publish(pool)
        assert pool.report()["lost_slots"] == 0
        assert reader.tell("pin") == pool.version


@pytest.mark.parametrize("published", [0, 1, 2, 3])
def test_what_a_killed_publisher_was_writing_is_never_seen(tmp_path, published):
    with told("shared_memory.py", "publish_as_told", tmp_path, NBYTES, 2) as publisher:
        name, nonce = publisher.tell("name")
        for _ in range(published):
            publisher.tell("publish")
        with PeerMemory(name, bytes.fromhex(nonce), tmp_path) as memory:
            assert publisher.tell("publish_half") == "half written"
            assert seen(memory) == (published, [published] if published else [])
            assert sweep(tmp_path) == 0
            publisher.kill()
            assert seen(memory) == (published, [published] if published else [])
        assert sweep(tmp_path) == 1
    assert not list(tmp_path.iterdir())


def seen(memory):
    """The version of the newest snapshot, and the values in it."""
    lease = memory.pin(LAYOUT)
    if lease is None:
        return 0, []
    with lease as snapshot:
        return snapshot.version, np.unique(snapshot.data).tolist()


# Sweeping


def test_many_processes_that_start_and_sweep_at_once_take_nothing_from_each_other(tmp_path):
    with told("shared_memory.py", "publish_as_told", tmp_path, 8, 2) as stale:
        stale.tell("publish")
        stale.kill()
    processes = [
        start("shared_memory.py", "start_and_sweep", tmp_path, 60, stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    with ended(*processes):
        lost = [process.stdout.readline() for process in processes]
        assert lost == ["0\n"] * 3, [process.communicate()[1] for process in processes]
        assert len(list(tmp_path.iterdir())) == 180  # the stale one is gone
        for process in processes:
            process.communicate(timeout=60)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_never_finished_is_swept_when_it_is_old(tmp_path):
    folder = tmp_path / ("dpwa-" + "0" * 32 + ".new")
    folder.mkdir()
    assert sweep(tmp_path) == 0
    old = folder.stat().st_mtime - UNFINISHED_FOR_S - 1
    os.utime(folder, (old, old))
    assert sweep(tmp_path) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["dpwa-checkpoints", "dpwa-checkpoints.new", "other"])
def test_what_others_keep_there_is_not_swept(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "board").touch()
    os.utime(folder, (0, 0))
    assert sweep(tmp_path) == 0
    assert (folder / "board").exists()


def test_what_a_link_leads_to_is_not_swept(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "board").touch()
    (tmp_path / ("dpwa-" + "0" * 32)).symlink_to(elsewhere)
    sweep(tmp_path)
    assert (elsewhere / "board").exists()


def test_a_killed_node_is_swept_by_the_next_that_starts(tmp_path):
    with told("shared_memory.py", "publish_as_told", tmp_path, 8, 2) as publisher:
        publisher.tell("publish")
        publisher.kill()
    with SharedMemory(tmp_path) as shared:
        assert [path.name for path in tmp_path.iterdir()] == [shared.name]


def test_one_folder_remains_as_long_as_its_node_lives(shared, tmp_path):
    with told("shared_memory.py", "publish_as_told", tmp_path, 8, 2) as publisher:
        name, _ = publisher.tell("name")
        assert remains(name, tmp_path)
        publisher.kill()
        assert not remains(name, tmp_path)
    assert not remains(name, tmp_path)
    assert remains(shared.name, tmp_path)


# A certain version


def test_a_version_that_is_there_is_pinned_rather_than_the_newest(shared, tmp_path):
    with pool_of(shared, slots=3) as pool, PeerMemory(shared.name, shared.nonce, tmp_path) as peer:
        for _ in range(3):
            publish(pool)
        for version in (2, 3):  # the slot of the first was free for the third
            with peer.pin(LAYOUT, version) as snapshot:
                assert snapshot.version == version
                assert (snapshot.data == version).all()


def test_for_a_version_that_is_gone_a_later_one_is_pinned_and_never_an_earlier_one(
    shared, tmp_path
):
    with pool_of(shared) as pool, PeerMemory(shared.name, shared.nonce, tmp_path) as peer:
        assert peer.pin(LAYOUT, 1) is None
        for _ in range(4):
            publish(pool)
        with peer.pin(LAYOUT, 1) as snapshot:
            assert snapshot.version == 4
        assert peer.pin(LAYOUT, 5) is None
        assert publish(pool) == 5  # nothing was left pinned
        assert publish(pool) == 6


def test_looking_for_a_version_leaves_nothing_pinned(shared, tmp_path):
    other = Layout((TensorSpec("w", "uint8", (NBYTES,), 1),))
    with pool_of(shared) as pool, PeerMemory(shared.name, shared.nonce, tmp_path) as peer:
        for _ in range(8):
            assert publish(pool) is not None
            assert peer.pin(LAYOUT, 10**6) is None
            assert peer.pin(other, 1) is None
        assert pool.skipped == 0


def test_a_version_is_pinned_while_the_publisher_hurries(shared, tmp_path):
    with pool_of(shared, slots=4) as pool, PeerMemory(shared.name, shared.nonce, tmp_path) as peer:
        publish(pool)
        with again_and_again(lambda: publish(pool)):
            for _ in range(300):
                wanted = pool.version
                lease = peer.pin(LAYOUT, wanted)
                if lease is not None:
                    with lease as snapshot:
                        assert snapshot.version >= wanted
                        assert (snapshot.data == snapshot.version % 256).all()


# News on the board


@given(st.lists(st.binary(max_size=NEWS_BYTES), min_size=1, max_size=8))
def test_the_last_news_is_on_the_board(news):
    with (
        TemporaryDirectory() as folder,
        SharedMemory(Path(folder)) as shared,
        mapped(shared, Path(folder)) as peer,
    ):
        assert peer.read_news() == b""
        for each in news:
            shared.post_news(each)
            assert peer.read_news() == each


def test_news_that_is_being_written_is_not_there_and_the_next_one_comes_whatever_became_of_it(
    shared, tmp_path
):
    with PeerMemory(shared.name, shared.nonce, tmp_path) as peer:
        shared.post_news(b"old")
        sequence, total, nbytes = NEWS_HEADER.unpack_from(shared._board, NEWS_AT)
        NEWS_HEADER.pack_into(shared._board, NEWS_AT, sequence + 1, total, nbytes)
        assert peer.read_news() == b""
        NEWS_HEADER.pack_into(shared._board, NEWS_AT, sequence + 2, total + 1, nbytes)
        assert peer.read_news() == b""  # parts of it are still to be seen
        NEWS_HEADER.pack_into(shared._board, NEWS_AT, sequence + 2, total, 2**32 - 1)
        assert peer.read_news() == b""  # whatever it says of its length
        NEWS_HEADER.pack_into(shared._board, NEWS_AT, sequence + 2, total, nbytes)
        assert peer.read_news() == b"old"
        # The sequence number stays odd if the writing is cut short, as by Ctrl-C.
        NEWS_HEADER.pack_into(shared._board, NEWS_AT, sequence + 3, total, nbytes)
        shared.post_news(b"new")
        assert peer.read_news() == b"new"


def test_no_reader_of_a_board_ever_sees_half_of_one_news_and_half_of_another(tmp_path):
    with told("shared_memory.py", "publish_as_told", tmp_path, 1, 2) as publisher:
        name, nonce = publisher.tell("name")
        with PeerMemory(name, bytes.fromhex(nonce), tmp_path) as peer:
            assert publisher.tell("tell_for_ever") == "telling"
            seen = [peer.read_news() for _ in range(100_000)]
    whole = [news for news in seen if news]
    assert len({news[0] for news in whole}) > 10
    for news in whole:
        assert news == bytes([news[0]]) * (1 + 15 * news[0])


def test_a_pool_that_a_signal_handler_closes_while_a_slot_is_sought_skips_the_round(
    tmp_path, monkeypatch
):
    with SharedMemory(tmp_path) as shared, pool_of(shared) as pool:
        assert [publish(pool), publish(pool)] == [1, 2]
        claim = _Slot.try_claim

        def interrupted(slot):
            pool.close()
            return claim(slot)

        monkeypatch.setattr(_Slot, "try_claim", interrupted)
        assert publish(pool) is None
    assert list(tmp_path.iterdir()) == []
