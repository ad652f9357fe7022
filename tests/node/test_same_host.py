"""Nodes on one host: parameters are merged straight out of the memory of a peer."""

import json
import os
import signal
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from support.nodes import config_of, eventually, status_of
from support.shared_memory import folders_of, own_shm, told

from dpwa import DpwaConnection
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import NONCE_BYTES, PAGE_BYTES
from dpwa.errors import AddressError

ELEMENTS = 1_000
NBYTES = 8 * ELEMENTS

__all__ = ["own_shm"]


@contextmanager
def connections(config, **transports):
    """Connections of the names, each with a transport."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(DpwaConnection(name, {**config, "transport": transport}))
            for name, transport in transports.items()
        ]


def publish(connection, value):
    connection.update_send(np.full(ELEMENTS, float(value)), 0.5)


def merged_from(one, two, mine=1, theirs=2):
    """Let both publish until the first gets something; return the values in it."""

    def attempt():
        publish(two, theirs)
        publish(one, mine)
        parameters, _ = one.update_wait(0.5)
        return [] if parameters is None else np.unique(parameters).tolist()

    return eventually(attempt)


def memory_of(connection):
    return connection.node.report()["memory"]


# Two nodes of this process


def test_nodes_of_one_host_merge_without_a_byte_on_the_wire():
    with connections(config_of(2), w1="auto", w2="auto") as (one, two):
        assert merged_from(one, two) == [2.0]
        assert merged_from(two, one, 3, 4) == [4.0]
        for connection in (one, two):
            report = connection.node.report()
            assert (report["bytes_received"], report["bytes_sent"]) == (0, 0)
            assert report["memory"]["mapped_bytes"] == PAGE_BYTES + NBYTES
            assert report["memory"]["is_shared"]
            assert report["gossip"]["fetches"] > 0
            assert (report["gossip"]["streams"], report["gossip"]["stream_s"]) == (0, 0.0)


def test_over_tcp_nothing_is_shared_or_mapped():
    with connections(config_of(2), w1="tcp", w2="tcp") as (one, two):
        before = folders_of(os.getpid())
        assert merged_from(one, two) == [2.0]
        assert one.node.report()["bytes_received"] >= NBYTES
        assert memory_of(one)["mapped_bytes"] == 0
        assert not memory_of(one)["is_shared"]
        assert folders_of(os.getpid()) == before == set()


@pytest.mark.parametrize("transports", [{"w1": "auto", "w2": "tcp"}, {"w1": "tcp", "w2": "shm"}])
def test_where_one_side_wants_a_stream_there_is_a_stream(transports):
    with connections(config_of(2), **transports) as (one, two):
        assert merged_from(one, two) == [2.0]
        assert one.node.report()["bytes_received"] >= NBYTES
        assert memory_of(one)["mapped_bytes"] == 0


def test_with_transport_shm_a_peer_that_shares_nothing_is_never_merged():
    with connections(config_of(2), w1="shm", w2="tcp") as (one, two):

        def outcomes():
            publish(two, 2)
            publish(one, 1)
            assert one.update_wait(0.5) == (None, 0.0)
            return status_of(one, "w2")["outcomes"]

        assert eventually(lambda: outcomes().get("not_mapped", 0) >= 3)
        assert "fetched" not in outcomes()
        assert status_of(one, "w2")["health"] == "not_mapped"
        assert one.node.report()["merges"] == 0


def test_what_is_merged_is_the_newest_when_it_is_merged():
    with connections(config_of(2), w1="auto", w2="auto") as (one, two):
        merged_from(one, two)

        def attempt(newest):
            publish(one, 1)
            for value in range(newest - 3, newest + 1):
                publish(two, value)
            return one.update_wait(0.5)[0]

        for newest in range(10, 200, 10):
            assert (attempt(newest) == newest).all()


def test_a_model_of_another_size_is_mapped_anew():
    with connections(config_of(2), w1="auto", w2="auto") as (one, two):
        for payload in (bytes([1]) * 10, bytes([2]) * 3_000_000, bytes([3])):

            def received(payload=payload):
                two.update_send(payload, 0.5)
                one.update_send(b"any", 0.5)
                return one.update_wait(0.5)[0]

            assert eventually(received) == payload
        assert one.node.report()["bytes_received"] == 0


@pytest.mark.parametrize("slots", [2, 5])
def test_a_node_takes_as_many_slots_as_its_readers_need_and_no_more_than_it_may(slots):
    with connections({**config_of(1), "slots": slots}, w1="auto") as (one,), ExitStack() as pins:
        (folder,) = folders_of(os.getpid())
        nonce = (folder / "board").read_bytes()[8 : 8 + NONCE_BYTES]
        memory = pins.enter_context(PeerMemory(folder.name, nonce))
        payload = bytes(NBYTES)
        for _ in range(2 * slots):
            one.update_send(payload, 0.5)
            pins.enter_context(memory.pin(Layout.of_bytes()))
        report = one.node.report()
        assert report["memory"]["slots"] == slots
        assert report["memory"]["slot_bytes"] == slots * NBYTES
        assert (report["version"], report["rounds_skipped"]) == (slots, slots)


def test_status_shows_what_the_memory_is_for():
    with connections(config_of(1), w1="auto") as (one,):
        publish(one, 1)
        assert memory_of(one) == {
            "slots": 1,
            "slot_bytes": NBYTES,
            "lost_slots": 0,
            "lost_bytes": 0,
            "is_shared": True,
            "receive_bytes": 0,
            "mapped_bytes": 0,
        }


def test_a_node_that_cannot_listen_leaves_no_folder():
    config = config_of(1)
    with connections(config, w1="auto"):
        before = folders_of(os.getpid())
        with pytest.raises(AddressError):
            DpwaConnection("w1", config)
        assert folders_of(os.getpid()) == before
        assert len(before) == 1


# Nodes in processes of their own


@pytest.fixture
def config(tmp_path):
    """A configuration of two nodes, and the path of a file with it."""
    mapping = {**config_of(2), "transport": "auto"}
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(mapping))
    return mapping, path


def told_node(name, config, own_shm=None, elements=ELEMENTS):
    command = ("told_node.py", name, config[1], elements)
    return told(*command) if own_shm is None else told(*own_shm(*command))


def merged_by(reader, publisher, value=2):
    """Tell both to publish until the first gets something; return the values in it."""

    def attempt():
        publisher.tell("send", value)
        reader.tell("send", 1)
        return reader.tell("wait")

    try:
        return eventually(attempt)
    except AssertionError:
        print(*(node.tell("report") for node in (reader, publisher)), sep="\n")
        raise


def own_folder(node):
    """The folder of a node that has mapped none of a peer."""
    node.tell("report")  # it is up
    (folder,) = folders_of(node.process.pid)
    return folder


def test_a_peer_with_a_dev_shm_of_its_own_is_merged_from_a_stream(config, own_shm):
    mapping, path = config
    path.write_text(json.dumps({**mapping, "timeout_ms": 20_000}))  # a busy machine is no failure
    with (
        told_node("w1", config) as one,
        told_node("w2", config, lambda *command: own_shm("size=10m", *command)) as two,
    ):
        assert merged_by(one, two) == [2.0]
        assert merged_by(two, one, 3) == [3.0]
        for node in (one, two):
            report = node.tell("report")
            assert report["bytes_received"] >= NBYTES
            assert report["memory"]["is_shared"]
            assert report["memory"]["mapped_bytes"] == 0
            outcomes = report["peers"][0]["outcomes"]
            assert outcomes.keys() <= {"fetched", "not_ready", "nothing_new", "unreachable"}


@pytest.mark.parametrize(
    ("options", "elements"),
    [
        pytest.param("ro", ELEMENTS, id="read-only"),
        pytest.param("size=1m", 500_000, id="too small for one snapshot"),
        pytest.param("size=1m", 80_000, id="too small for two snapshots"),
        pytest.param("nr_inodes=1", ELEMENTS, id="no room for a file"),
    ],
)
def test_without_room_in_dev_shm_a_node_warns_once_and_streams(config, own_shm, options, elements):
    with (
        told_node("w1", config, elements=elements) as one,
        told_node("w2", config, lambda *command: own_shm(options, *command), elements) as two,
    ):
        for value in range(2, 7):
            assert merged_by(one, two, value) == [value]
        assert merged_by(two, one, 8) == [8.0]
        assert not two.tell("report")["memory"]["is_shared"]
        assert one.tell("report")["bytes_received"] >= 8 * elements
        code, errors = two.end()
    warnings = [line for line in errors.splitlines() if "shared memory" in line]
    assert code == 0, errors
    assert len(warnings) == 1, errors
    assert "WARNING" in warnings[0]
    assert "can only get snapshots as a stream" in warnings[0]


def test_with_transport_shm_a_node_without_dev_shm_says_so_and_ends(tmp_path, own_shm):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps({**config_of(1), "transport": "shm"}))
    with told(*own_shm("ro", "told_node.py", "w1", path, ELEMENTS)) as node:
        code, errors = node.end()
    assert code == 1
    assert "UserError: shared memory cannot be used (" in errors
    assert "Set `transport: auto`, not `shm`" in errors


def test_a_restarted_peer_is_mapped_again(config):
    with told_node("w1", config) as one:
        for value, end in ((2, "kill"), (3, "end"), (4, "end")):
            with told_node("w2", config) as two:
                assert merged_by(one, two, value) == [value]
                memory = one.tell("report")["memory"]
                assert memory["mapped_bytes"] == PAGE_BYTES + NBYTES
                getattr(two, end)()
        assert one.tell("report")["bytes_received"] == 0


@pytest.mark.parametrize("its_lock", ["ends with it", "ends later"])
def test_a_killed_peer_is_unmapped_and_swept_by_the_one_that_survives(config, its_lock):
    with told_node("w1", config) as one, told_node("w2", config) as two:
        folder = own_folder(two)
        assert merged_by(one, two) == [2.0]
        if its_lock == "ends later":
            two.tell("share_lock")
        two.kill()
        eventually(lambda: not folder.exists(), timeout_s=5)
        eventually(lambda: one.tell("report")["memory"]["mapped_bytes"] == 0)
        assert own_folder(one).exists()


def test_a_stopped_peer_is_merged_out_of_its_memory(config):
    with told_node("w1", config) as one, told_node("w2", config) as two:
        merged_by(one, two)
        assert eventually(lambda: merged_while_stopped(one, two)) == [2.0]
        assert merged_by(one, two, 3) == [3.0]


def merged_while_stopped(reader, publisher):
    """Stop a peer between a fetch and its merging; return the values in what is merged."""
    publisher.tell("send", 2)
    reader.tell("send", 1)
    reader.tell("report")  # the peer, if it is asked, has the time to answer
    publisher.process.send_signal(signal.SIGSTOP)
    values = reader.tell("wait")
    publisher.process.send_signal(signal.SIGCONT)
    return values


@pytest.mark.parametrize(
    ("how", "expected_code"),
    [
        ("return", 0),
        ("close", 0),
        ("exit", 0),
        ("fail", 1),
        ("interrupt", -signal.SIGINT),
        ("interrupt_while_closing", -signal.SIGINT),
    ],
)
def test_whatever_its_end_a_node_leaves_nothing_in_dev_shm(config, how, expected_code):
    with told_node("w1", config) as one, told_node("w2", config) as two:
        folder = own_folder(two)
        assert merged_by(one, two) == [2.0]
        assert merged_by(two, one, 3) == [3.0]  # so it has somebody to say goodbye to
        assert len(list(folder.iterdir())) > 1
        one.process.send_signal(signal.SIGSTOP)  # it must not sweep what the other has left
        if how != "return":
            two.process.stdin.write(how + "\n")
        code, errors = two.end()
        assert not folder.exists(), errors
        assert code == expected_code, errors
        one.process.send_signal(signal.SIGCONT)


def test_a_mapped_peer_whose_model_changes_is_asked_again_and_tells_how():
    config = config_of(2)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        two.update_send(np.ones(1000), 0.1)

        def merged():
            one.update_send(np.zeros(1000), 0.1)
            return one.update_wait(0.1)[0] is not None

        eventually(merged)
        two.update_send(np.ones(2000), 0.1)
        two.update_send(np.ones(2000), 0.1)
        assert not merged()
        assert status_of(one, "w2")["health"] == "other_model"
        assert status_of(one, "w2")["outcomes"]["other_model"] == 1
        two.update_send(np.ones(1000), 0.1)
        eventually(merged)
