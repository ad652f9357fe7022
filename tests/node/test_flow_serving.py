"""What a node sends to those that read from it: fairly, and no faster than it may."""

import secrets
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from support.nodes import config_of, eventually, status_of
from support.requests import fetch_of
from support.times import SetClock, at_most
from support.writers import filling

from dpwa import DpwaConnection
from dpwa.clock import SystemClock
from dpwa.config import load_config
from dpwa.data.layout import Layout
from dpwa.data.snapshot import SnapshotPool
from dpwa.node.serving.snapshot_service import SnapshotService
from dpwa.node.serving.upload import BURST_S, BYTES_PER_MBIT, Upload
from dpwa.types import TrainingProgress
from dpwa.wire import limits
from dpwa.wire.messages import Cancel, Chunk, Credit, SnapshotHeader

MB = 10**6
LAYOUT = Layout.of_bytes()


# One service, driven by hand


class Taken:
    done = True


class Reader:
    """A connection of a peer; `sent` lists what every reader got, in order."""

    def __init__(self, service, name, connection, sent):
        self._service, self._name, self._id = service, name, connection.encode()
        self._sent = sent
        self.takes = True
        self.nbytes = self._left = self._unread = 0
        self._fields = {}

    def fetch(self, **fields):
        self._fields = fields
        request = fetch_of(LAYOUT.fingerprint, name=self._name, **{"credit": 16, **fields})
        self._service.receive(self._id, request, b"", self._reply)

    def grant(self, chunks):
        self._service.receive(self._id, Credit(request=1, chunks=chunks), b"", self._reply)

    def cancel(self):
        self._service.receive(self._id, Cancel(request=1), b"", self._reply)

    def read_on(self):
        """Allow as much as has come, and begin anew after the end."""
        if self._left <= 0:
            self.fetch(**self._fields)
        elif self._unread:
            self.grant(self._unread)
        self._unread = 0

    def _reply(self, message, payload=None, *, is_lent=False):
        if not self.takes:
            return None
        if isinstance(message, SnapshotHeader):
            self._left = message.nbytes
        if isinstance(message, Chunk):
            assert is_lent
            assert payload is not None
            self.nbytes += len(payload)
            self._left -= len(payload)
            self._unread += 1
            self._sent.append(self._id.decode())
        return Taken()


@contextmanager
def serving(upload_mbps=None, sessions_per_peer=2, nbytes=8 * limits.CHUNK_BYTES, clock=None):
    clock = clock or SystemClock()
    limited = {"sessions_per_peer": sessions_per_peer}
    with SnapshotPool(clock, 60.0, 3) as pool:
        pool.publish_snapshot(LAYOUT, nbytes, TrainingProgress(clock=1.0), filling(1))
        context = SimpleNamespace(
            config=load_config(config_of(2, timeout_ms=30_000, limits=limited)),
            runtime=SimpleNamespace(now=clock.now, token_bytes=secrets.token_bytes),
            pool=pool,
            upload=Upload(upload_mbps, clock),
            peer_table=SimpleNamespace(spoke=lambda name: None, sent=lambda *_: None),
            receive_news=lambda news: None,
            select_news=lambda: (),
        )
        yield SnapshotService(context)


def test_those_who_read_at_once_are_sent_a_chunk_each_in_turn():
    with serving() as service:
        sent = []
        Reader(service, "greedy", "g1", sent).fetch()
        Reader(service, "greedy", "g2", sent).fetch()
        Reader(service, "a", "a", sent).fetch(credit=3)
        assert not service.tick(0.0)
        assert sent[:6] == ["a", "g1", "a", "g2", "a", "g1"]
        assert sorted(sent[6:]) == ["g1"] * 6 + ["g2"] * 7


def test_a_reader_that_takes_nothing_holds_nobody_up():
    with serving() as service:
        sent = []
        stuck = Reader(service, "s", "s", sent)
        stuck.takes = False
        stuck.fetch()
        Reader(service, "a", "a", sent).fetch()
        assert service.tick(0.0)  # it is tried again
        assert sent == ["a"] * 8
        stuck.takes = True
        assert not service.tick(0.0)
        assert sent == ["a"] * 8 + ["s"] * 8


def test_a_peer_that_reads_more_often_than_it_may_loses_its_oldest_session():
    with serving(sessions_per_peer=2) as service:
        sent = []
        readers = [Reader(service, "greedy", f"g{i}", sent) for i in range(4)]
        honest = Reader(service, "a", "a", sent)
        honest.fetch(credit=1)
        for reader in readers:
            reader.fetch(credit=1)
        service.tick(0.0)
        assert sorted(sent) == ["a", "g2", "g3"]
        for reader in (*readers, honest):
            reader.grant(1)
        service.tick(0.0)
        assert sorted(sent) == ["a", "a", "g2", "g2", "g3", "g3"]


def test_names_that_come_and_go_take_nothing_of_the_upload_from_a_reader_that_stays():
    clock, sent, steps = SetClock(), [], 0
    with serving(upload_mbps=80.0, clock=clock) as service:
        honest = Reader(service, "honest", "honest", sent)
        honest.fetch()
        while len(sent) < 8:
            for number in range(3):
                passing = Reader(service, f"{steps}-{number}", "passing", [])
                passing.fetch(chunk_bytes=1 << 12, credit=1)
                service.tick(clock.time)
                passing.cancel()
            clock.time, steps = clock.time + 0.02, steps + 1
            service.tick(clock.time)
            assert clock.time < 10.0, f"only {len(sent)} chunks"
    alone_s = 8 * limits.CHUNK_BYTES / (80.0 * BYTES_PER_MBIT)
    assert clock.time < 1.2 * alone_s


def test_two_honest_readers_have_their_share_beside_a_greedy_one():
    clock, seconds = SetClock(), 2.0
    with serving(upload_mbps=200.0, nbytes=16 * MB, clock=clock) as service:
        greedy = [Reader(service, "greedy", f"greedy{index}", []) for index in range(6)]
        fine, usual = Reader(service, "a", "a", []), Reader(service, "b", "b", [])
        for reader in greedy:
            reader.fetch(credit=16, chunk_bytes=limits.CHUNK_BYTES)
        fine.fetch(credit=6, chunk_bytes=limits.CHUNK_BYTES // 4)
        usual.fetch(credit=6)
        while clock.time < seconds:
            clock.time += 0.002
            service.tick(clock.time)
            for reader in (*greedy, fine, usual):
                reader.read_on()
    got = [sum(reader.nbytes for reader in greedy), fine.nbytes, usual.nbytes]
    assert sum(got) == pytest.approx(seconds * 200 * BYTES_PER_MBIT, rel=0.1)
    # Each may have one claim more or less under way than another.
    assert got == pytest.approx([sum(got) / 3] * 3, abs=2 * limits.CHUNK_BYTES)


def test_when_there_are_too_many_sessions_whoever_has_the_most_loses_one(monkeypatch):
    monkeypatch.setattr(limits, "MAX_SESSIONS", 3)
    with serving(sessions_per_peer=2) as service:
        sent = []
        for name, connection in (("a", "a"), ("greedy", "g1"), ("greedy", "g2"), ("b", "b")):
            Reader(service, name, connection, sent).fetch(credit=1)
        service.tick(0.0)
        assert sorted(sent) == ["a", "b", "g2"]


def test_what_could_not_be_sent_does_not_count_as_upload():
    rate = 8 * limits.CHUNK_BYTES / BYTES_PER_MBIT / BURST_S  # 8 chunks at once
    with serving(upload_mbps=rate) as service:
        sent = []
        reader = Reader(service, "a", "a", sent)
        reader.takes = False
        reader.fetch()
        for _ in range(20):
            assert service.tick(0.0)
        reader.takes = True
        service.tick(0.0)
        assert sent == ["a"] * 8


# Real nodes


def config_with(mbps, **settings):
    return config_of(2, transport="tcp", timeout_ms=60_000, max_upload_mbps=mbps, **settings)


def test_a_node_sends_no_faster_than_it_may_and_nearly_as_fast():
    config = config_with(100.0)
    parameters = np.ones(25 * MB, np.uint8)
    with DpwaConnection("w1", config) as mine, DpwaConnection("w2", config) as theirs:
        theirs.update_send(parameters, 0.1)
        began = time.monotonic()

        def fetched():
            mine.update_send(parameters, 0.1)
            return mine.update_wait(0.1)[0] is not None

        eventually(fetched)
        took_s = time.monotonic() - began
        assert 0.8 * 25 * 8 / 100 < took_s < at_most(1.2 * 25 * 8 / 100)
        peer = status_of(mine, "w2")
        assert peer["bandwidth_mbps"] < 120
        assert not peer["rests"]
        theirs.update_wait(0.1)
