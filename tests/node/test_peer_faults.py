"""Peers that are down, slow or wrong: the trainer never raises and never waits past its bound."""

import errno
import gc
import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import msgpack
import numpy as np
import pytest
import zmq
from support.imposters import imposter
from support.inside import context_of
from support.nodes import config_of, eventually, status_of
from support.processes import resident_mb
from support.requests import fetch_of, header_of
from support.shared_memory import told
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.data import codecs, peer_memory
from dpwa.data.checksum import checksum
from dpwa.errors import ClosedError, UserError
from dpwa.wire import limits
from dpwa.wire.messages import (
    AskStatus,
    Chunk,
    Goodbye,
    NotReady,
    OtherModel,
    SharedMemoryName,
    Status,
    decode,
    encode,
)

TIMEOUT_MS = 1000
PARAMETERS = np.zeros(1000, np.float32)


def timed_round(connection, loss=0.1):
    """One round; return what came and how long `update_wait` took, in seconds."""
    connection.update_send(PARAMETERS, loss)
    start = time.monotonic()
    parameters, factor = connection.update_wait(loss)
    assert factor == (0.0 if parameters is None else 0.5)
    return parameters, time.monotonic() - start


def assert_bounded(seconds):
    assert seconds <= at_most((TIMEOUT_MS + 50) / 1000)


def rounds_for_ever(connection):
    while True:
        timed_round(connection)


def rounds_until(connection, outcome):
    """Run rounds, each within its bound, until a fetch has ended in this way."""

    def attempt():
        parameters, seconds = timed_round(connection)
        assert parameters is None
        assert_bounded(seconds)
        return status_of(connection, "w2")["outcomes"].get(outcome)

    return eventually(attempt)


@pytest.fixture
def config():
    return config_of(2, timeout_ms=TIMEOUT_MS, repeat="merge")  # peers stand still here


@pytest.fixture
def node(config):
    with DpwaConnection("w1", config) as node:
        yield node


@pytest.fixture
def port(config):
    return config["nodes"][1]["port"]


@contextmanager
def asking(config, rcvhwm=1000):
    """A socket of a stranger, connected to the first node."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvhwm = 0, rcvhwm
        dealer.connect(f"tcp://127.0.0.1:{config['nodes'][0]['port']}")
        yield dealer


def fingerprint_of(connection):
    with context_of(connection.node).pool.newest() as snapshot:
        return snapshot.layout.fingerprint


def test_a_peer_that_is_down_costs_no_time(node):
    rounds_until(node, "unreachable")
    waits = [timed_round(node)[1] for _ in range(50)]
    assert max(waits) < 0.05
    assert status_of(node, "w2")["score"] == 1000  # nobody was there to be judged
    assert node.peers == ("w2",)  # never removed for good


def test_a_peer_that_accepts_and_says_nothing_times_out(config, port):
    with socket.create_server(("127.0.0.1", port)), DpwaConnection("w1", config) as node:
        rounds_until(node, "timed_out")
        assert status_of(node, "w2")["score"] == 900
        rounds_until(node, "timed_out")


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", os.urandom(4096), b"\0"])
def test_a_peer_that_speaks_no_zeromq_never_holds_the_trainer(node, port, greeting):
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(0.05)
        for _ in range(12):
            try:
                connection, _ = server.accept()
                connection.sendall(greeting)
                connection.close()
            except OSError:
                pass
            parameters, seconds = timed_round(node)
            assert parameters is None
            assert_bounded(seconds)


def header(**changes):
    return header_of(**{"loss": 0.1, "nbytes": PARAMETERS.nbytes, "is_finite": True, **changes})


def chunk(request, payload):
    return [encode(Chunk(request=request, index=0, checksum=checksum(payload))), payload]


def replies(request):
    """Wrong answers to a fetch, each with how it counts."""
    corrupted = [chunk(request, bytes(4000))[0], b"x" + bytes(3999)]
    snapshot = encode(header(request=request))
    return {
        "silence": ([], "timed_out"),
        "half a snapshot": ([[snapshot]], "timed_out"),
        "another size": ([[encode(header(request=request, nbytes=4))]], "misbehaved"),
        "a huge size": ([[encode(header(request=request, nbytes=2**62))]], "misbehaved"),
        "a short chunk": ([[snapshot], chunk(request, b"short")], "misbehaved"),
        "a corrupted chunk": ([[snapshot], corrupted], "misbehaved"),
        "a chunk first": ([chunk(request, bytes(4000))], "misbehaved"),
        "shared memory that is not there": (
            [[encode(SharedMemoryName(request=request, name="dpwa-" + 32 * "0", nonce=bytes(16)))]],
            "misbehaved",  # it is asked for a stream, and gives the same answer
        ),
        "shared memory by another name": (
            [[encode(SharedMemoryName(request=request, name="../secret", nonce=bytes(16)))]],
            "misbehaved",
        ),
        "two headers": ([[snapshot], [snapshot]], "misbehaved"),
        "garbage": ([[os.urandom(100)]], "misbehaved"),
        "too many frames": ([[b"x"] * 50], "misbehaved"),
        "a status": ([[encode(Status(request=request)), b""]], "misbehaved"),
        "a broken layout": ([[encode(OtherModel(request=request)), b"\xc1"]], "misbehaved"),
        "a flood of details": (
            [[encode(OtherModel(request=request)), b"\x90" * 4_000_000]],
            "misbehaved",
        ),
        "not ready": ([[encode(NotReady(request=request))]], "not_ready"),
        "another request": ([[encode(NotReady(request=request + 1000))]], "timed_out"),
        "another version": (
            [[msgpack.packb({"v": 99, "type": "hello", "request": request})]],
            "other_version",
        ),
    }


@pytest.mark.parametrize("kind", list(replies(0)))
def test_a_peer_that_answers_wrongly_is_counted_and_never_merged(node, port, kind):
    def answer(frames):
        message, _ = decode(frames)
        return replies(message.request)[kind][0] if message.type == "fetch" else []

    with imposter(port, answer):
        rounds_until(node, replies(0)[kind][1])
    assert node.peers == ("w2",)


def test_a_node_answers_another_protocol_version_with_its_own(node, config):
    with asking(config) as dealer:
        dealer.send(msgpack.packb({"v": 99, "type": "fetch", "request": 1}))
        assert dealer.poll(30_000)
        assert msgpack.unpackb(dealer.recv())["v"] == limits.PROTOCOL_VERSION


def told_of_w2(caplog):
    told = [m.removeprefix("w1: peer w2 ") for m in caplog.messages if m.startswith("w1: peer w2")]
    return [message.split(":")[0] for message in told]


def test_a_peer_that_ends_on_purpose_alarms_nobody(config, caplog):
    config = {**config, "log_level": "info", "timeout_ms": 10_000, "needs_finish": False}
    with DpwaConnection("w1", config) as node:
        rounds_until(node, "unreachable")
        for _ in range(2):
            with DpwaConnection("w2", config) as peer:
                peer.update_send(PARAMETERS, 0.1)
                for _ in range(3):
                    eventually(lambda: timed_round(node)[0] is not None)
            eventually(lambda: timed_round(node)[0] is None)
            for _ in range(5):
                timed_round(node)
        assert status_of(node, "w2")["health"] == "finished"
    assert told_of_w2(caplog) == ["is alive", "has finished"] * 2
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_a_peer_that_dies_is_told_once_and_so_is_its_return(config, tmp_path, caplog):
    path = tmp_path / "w2.json"
    path.write_text(json.dumps(config))
    config = {**config, "log_level": "info"}
    published = np.zeros(125_000)

    def came():
        node.update_send(published, 0.1)
        return node.update_wait(0.1)[0] is not None

    with DpwaConnection("w1", config) as node:
        for _ in range(2):
            with told("told_node.py", "w2", path, 125_000) as victim:
                victim.tell("send", 1)
                eventually(came, timeout_s=30)
            eventually(lambda: not came())
            for _ in range(5):
                came()
    lines = [text.removesuffix(" [DPWA-W007]") for text in told_of_w2(caplog)]
    assert lines == ["is alive", "cannot be reached", "is alive again", "cannot be reached"]
    levels = [r.levelname for r in caplog.records if "peer w2" in r.getMessage()]
    assert levels == ["INFO", "WARNING", "WARNING", "WARNING"]


def test_a_goodbye_from_a_stranger_is_ignored(node, config):
    with asking(config) as dealer:
        dealer.send(encode(Goodbye(request=0, name="nobody")))
        dealer.send(encode(AskStatus(request=1)))
        assert dealer.poll(30_000)
    assert status_of(node, "w2")["health"] == "unknown"


def test_a_round_finds_a_living_peer_when_others_are_down():
    config = config_of(5, timeout_ms=2000, repeat="merge")
    with DpwaConnection("w1", config) as node, DpwaConnection("w4", config) as peer:
        peer.update_send(PARAMETERS, 0.1)
        eventually(lambda: timed_round(node)[0] is not None)
        assert all(timed_round(node)[0] is not None for _ in range(20))


def test_a_stopped_reader_does_not_hold_the_publisher(config):
    """A fetch that is never continued leases a slot only until its budget is over."""
    big = np.zeros(20 * limits.CHUNK_BYTES, np.uint8)
    with DpwaConnection("w1", config) as node, ExitStack() as dealers:
        node.update_send(big)
        fingerprint = fingerprint_of(node)
        for _ in range(8):
            node.update_send(big)
            dealer = dealers.enter_context(asking(config))
            dealer.send(encode(fetch_of(fingerprint)))
            assert dealer.poll(30_000)
        before = node.node.version
        eventually(lambda: node.update_send(big) or node.node.version > before + 10)


def test_a_peer_whose_name_has_no_address_costs_no_time():
    config = config_of(2, timeout_ms=TIMEOUT_MS)
    config["nodes"][1]["host"] = "no-such-host.invalid"
    with DpwaConnection("w1", config) as node:
        rounds_until(node, "unreachable")
        assert max(timed_round(node)[1] for _ in range(10)) < at_most(0.05)


def test_a_flood_of_answers_that_nobody_asked_for_stops_neither_fetches_nor_deadlines():
    config = config_of(3, timeout_ms=TIMEOUT_MS, repeat="merge")
    flood = [encode(NotReady(request=10**6))]
    with (
        DpwaConnection("w1", config) as node,
        DpwaConnection("w3", config) as good,
        imposter(config["nodes"][1]["port"], lambda frames: [flood] * 20_000),
    ):
        good.update_send(PARAMETERS, 0.1)
        came = []

        def flooded():
            parameters, seconds = timed_round(node)
            assert_bounded(seconds)
            came.append(parameters is not None)
            return status_of(node, "w2")["outcomes"].get("timed_out", 0) >= 2

        eventually(flooded)
        came.clear()
        eventually(lambda: flooded() and sum(came) >= 3)


def test_a_reader_that_does_not_read_is_given_up_and_costs_no_memory(config):
    big = np.zeros(100 * limits.CHUNK_BYTES, np.uint8)
    with DpwaConnection("w1", config) as node, asking(config, rcvhwm=1) as dealer:
        node.update_send(big)
        fingerprint = fingerprint_of(node)
        before = resident_mb()
        for request in range(1, 400):
            dealer.send(encode(fetch_of(fingerprint, request=request, credit=16)))
        eventually(lambda: node.node.report()["bytes_sent"] > 0)
        time.sleep(1.0)
        assert resident_mb() - before < 100  # without a limit it would be many times that


def test_when_readers_hold_every_slot_this_node_still_fetches(config):
    with DpwaConnection("w1", config) as node, DpwaConnection("w2", config) as peer:
        peer.update_send(PARAMETERS + 1, 0.1)
        eventually(lambda: timed_round(node)[0] is not None)
        held = []
        while len(held) < 3:
            held.append(context_of(node.node).pool.newest())
            node.update_send(PARAMETERS, 0.1)
            node.update_wait(0.1)
        before = node.node.version
        assert all(timed_round(node)[0] is not None for _ in range(10))
        assert (node.node.version, node.node.report()["rounds_skipped"] >= 10) == (before, True)
        for lease in held:
            lease.release()
        timed_round(node)
        assert node.node.version > before


@pytest.mark.parametrize(
    ("name", "host", "port"),
    [
        ("a", "bad host", 5000),
        ("a", "", 5000),
        ("a", "*", 5000),
        ("a", "h", 99999),
        ("a b", "h", 1),
    ],
)
def test_an_impossible_peer_is_refused_at_once(node, name, host, port):
    with pytest.raises(UserError, match=f"peer '{name}': "):
        node.add_peer(name, host, port)
    assert node.peers == ("w2",)


def test_a_thousand_nested_values_are_ignored_quietly(node, config, caplog):
    value = 1
    for _ in range(900):
        value = [value]
    whole = {"v": limits.PROTOCOL_VERSION, "type": "fetch", "request": 1}
    with asking(config) as dealer:
        for key in whole:
            dealer.send(msgpack.packb({**whole, key: value}))
        eventually(lambda: node.node.report()["bad_messages"] == 3)
    assert not caplog.messages


def test_a_signal_handler_may_close_the_node(config):
    """Whatever the training thread is doing, in the middle of any call of the node."""
    with DpwaConnection("w1", config) as node:
        closing = threading.Event()

        def close(*_):
            closing.set()
            node.close()

        previous = signal.signal(signal.SIGALRM, close)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            start = time.monotonic()
            with pytest.raises(ClosedError):
                rounds_for_ever(node)
            assert closing.is_set()
            assert time.monotonic() - start < at_most(3.0)
        finally:
            signal.signal(signal.SIGALRM, previous)


def test_another_thread_may_close_the_node_in_the_middle_of_a_round():
    for _ in range(8):
        config = config_of(2, timeout_ms=TIMEOUT_MS)
        with DpwaConnection("w1", config) as node, DpwaConnection("w2", config) as peer:
            peer.update_send(PARAMETERS, 0.1)
            closer = threading.Timer(0.03, node.close)
            closer.start()
            with pytest.raises(ClosedError):
                rounds_for_ever(node)
            closer.join()


def test_a_forgotten_node_is_closed_when_it_is_collected(config):
    node = DpwaConnection("w1", config)
    node.update_send(PARAMETERS)
    del node
    gc.collect()
    with DpwaConnection("w1", config):  # its port is free again
        pass


def test_a_codec_that_cannot_be_made_costs_no_slot(node, config, monkeypatch):
    def broken():
        raise ValueError("no")

    monkeypatch.setitem(codecs._REGISTRY._items, "broken", (broken, broken))
    node.update_send(PARAMETERS)
    with asking(config) as dealer:
        for request in range(20):
            node.update_send(PARAMETERS)
            dealer.send(encode(fetch_of(fingerprint_of(node), request=request, codec="broken")))
            bad = request + 1
            eventually(lambda bad=bad: node.node.report()["bad_messages"] >= bad)
    assert node.node.report()["rounds_skipped"] == 0
    assert node.node.report()["memory"]["lost_slots"] == 0


def test_an_unknown_codec_and_chunks_too_small_are_refused(node, config, monkeypatch):
    monkeypatch.setattr(limits, "MAX_PIECES", 1)
    node.update_send(np.zeros(10_000))
    refusals = []
    with asking(config) as dealer:
        for fields in ({"codec": "x"}, {"chunk_bytes": limits.MIN_CHUNK_BYTES}):
            dealer.send(encode(fetch_of(fingerprint_of(node), **fields)))
            assert dealer.poll(30_000)
            refusals.append(decode(dealer.recv_multipart())[0].reason)
    assert refusals == ["unknown codec x", "the chunks are too small"]


def test_memory_that_cannot_be_mapped_is_replaced_by_a_stream(config, monkeypatch):
    with DpwaConnection("w1", config) as node, DpwaConnection("w2", config) as peer:
        peer.update_send(PARAMETERS + 1, 0.1)

        def no_descriptor_left(*_):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(peer_memory, "_MappedSegment", no_descriptor_left)
        eventually(lambda: timed_round(node)[0] is not None)
        assert node.node.report()["bytes_received"] >= PARAMETERS.nbytes
        monkeypatch.undo()
        before = node.node.report()["bytes_received"]
        eventually(lambda: timed_round(node)[0] is not None)
        assert node.node.report()["bytes_received"] == before


def test_what_broke_before_the_trainer_waited_is_not_even_begun(config, port):
    big = np.zeros(2 * limits.CHUNK_BYTES, np.uint8)

    def answer(frames):
        message, _ = decode(frames)
        if message.type == "fetch":
            first = bytes(limits.CHUNK_BYTES)
            yield [encode(header(request=message.request, nbytes=big.nbytes))]
            yield chunk(message.request, first)  # and never the second one

    begun = []
    with imposter(port, answer), DpwaConnection("w1", config) as node:

        def late_round():
            node.update_send(big)
            time.sleep(TIMEOUT_MS / 1000 + 0.1)
            start = time.monotonic()
            begin = lambda arrival: begun.append(arrival)  # noqa: E731
            assert node.node.rounds.wait_and_merge(None, begin) is None
            assert time.monotonic() - start < at_most(0.05)
            return status_of(node, "w2")["outcomes"].get("timed_out", 0) >= 2

        eventually(late_round)
    assert not begun
