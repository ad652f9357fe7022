"""Whoever comes to a node is counted, with keys and without: nobody breaks off unseen."""

import contextlib
import socket
import struct

import pytest
import zmq
from programs.attackers import COMMAND, GREETING, LONG, MORE, TEN_GB, frame, message, ready
from support.keys import key_folder
from support.nodes import config_of, eventually, has_merged

from dpwa import DpwaConnection
from dpwa.wire.messages import AskStatus, encode

CURVE_GREETING = GREETING.replace(b"NULL\0", b"CURVE")
KINDS = ("none", "curve")
ASK = message(encode(AskStatus(request=1)))
TOO_LONG = struct.pack(">BQ", LONG, TEN_GB) + bytes(2000)
TLS = bytes.fromhex("16030100c8010000c40303") + bytes(range(194))
HTTP = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(60)
GARBAGE_CONNECTIONS = 1000


@contextlib.contextmanager
def node_with(tmp_path, security, peers=1, **limits):
    """Nodes w1, ... that see nobody else, and the port of the first."""
    names = [f"w{index}" for index in range(1, peers + 1)]
    keys = str(key_folder(tmp_path / "keys", *names).path)
    config = config_of(peers, security=security, keys=keys, transport="tcp", limits=limits)
    with DpwaConnection("w1", config) as one:
        yield one, config


@pytest.fixture(params=KINDS)
def alone(request, tmp_path):
    with node_with(tmp_path, request.param, handshake_timeout_s=0.2) as (one, config):
        yield one, config["nodes"][0]["port"]


def came(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def hung_up(connection):
    """Wait until the other side has ended a connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def shaken(port):
    """A connection that has shaken hands with a node without keys."""
    connection = came(port)
    connection.sendall(GREETING + ready())
    answer = b""
    while b"Socket-Type" not in answer:
        answer += connection.recv(4096)
    return connection


def counted(one):
    report = one.node.report()
    return {**report["connections"], **report["handshakes_refused"]}


def difference(one, before):
    return {key: n - before[key] for key, n in counted(one).items() if n != before[key]}


@pytest.mark.parametrize("data", [HTTP, GREETING + TOO_LONG], ids=["HTTP", "10 GB"])
def test_what_is_no_handshake_is_hung_up_on_and_counted(alone, data):
    one, port = alone
    with came(port) as connection:
        connection.sendall(data)
        assert hung_up(connection)
        eventually(lambda: counted(one)["unheard"] == 1)
    assert (counted(one)["accepted"], counted(one)["ended"]) == (1, 1)


@pytest.mark.parametrize("said", [b"", GREETING[:11], GREETING[:30]])
def test_a_handshake_that_takes_too_long_is_counted(alone, said):
    one, port = alone
    with came(port) as connection:
        connection.sendall(said)
        assert hung_up(connection)
    eventually(lambda: (counted(one)["broken_off"], counted(one)["unheard"]) == (1, 1))


def test_a_thousand_garbage_connections_are_counted_one_by_one(alone):
    one, port = alone
    for index in range(GARBAGE_CONNECTIONS):
        with came(port) as connection:
            connection.sendall([HTTP, TLS, GREETING[:30], b"\xff"][index % 4])
    expected = {"accepted": GARBAGE_CONNECTIONS, "ended": GARBAGE_CONNECTIONS}
    eventually(lambda: expected.items() <= counted(one).items())
    assert counted(one)["unheard"] == GARBAGE_CONNECTIONS


def test_who_has_keys_where_there_are_none_is_counted(tmp_path):
    with node_with(tmp_path, "none") as (one, config), came(config["nodes"][0]["port"]) as raw:
        raw.sendall(CURVE_GREETING)
        assert hung_up(raw)
        eventually(lambda: (counted(one)["protocol"], counted(one)["unheard"]) == (1, 1))


def test_a_curve_client_of_zeromq_at_a_plain_port_is_counted_and_gets_no_answer(tmp_path):
    with (
        node_with(tmp_path, "none") as (one, config),
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = zmq.curve_keypair()[0]
        dealer.connect(f"tcp://127.0.0.1:{config['nodes'][0]['port']}")
        with contextlib.suppress(zmq.Again):  # it may have been refused already
            dealer.send(encode(AskStatus(request=1)), zmq.NOBLOCK)
        eventually(lambda: counted(one)["unheard"] >= 1)
        assert sum(one.node.report()["handshakes_refused"].values()) >= 1
        assert not dealer.poll(0)


def test_who_has_no_keys_where_they_are_asked_for_is_counted(tmp_path):
    with node_with(tmp_path, "curve") as (one, config), came(config["nodes"][0]["port"]) as raw:
        raw.sendall(GREETING + ready())
        assert hung_up(raw)
        eventually(lambda: (counted(one)["protocol"], counted(one)["unheard"]) == (1, 1))


@pytest.mark.parametrize("start", [TOO_LONG, bytes([LONG | COMMAND]) + TOO_LONG[1:]])
def test_a_frame_of_10_gb_ends_its_connection_and_is_counted(tmp_path, start):
    with node_with(tmp_path, "none") as (one, config):
        for _ in range(3):
            with shaken(config["nodes"][0]["port"]) as raw:
                raw.sendall(start)
                assert hung_up(raw)
        eventually(lambda: counted(one)["unheard"] == 3)
        assert sum(one.node.report()["handshakes_refused"].values()) == 0


def test_a_frame_of_10_gb_after_a_message_ends_its_connection_and_is_counted(tmp_path):
    with node_with(tmp_path, "none") as (one, config):
        with shaken(config["nodes"][0]["port"]) as raw:
            raw.sendall(ASK)
            assert raw.recv(4096)  # the answer: it was heard
            raw.sendall(TOO_LONG)
            assert hung_up(raw)
        eventually(lambda: counted(one)["ended"] == 1)
        assert counted(one)["unheard"] == 0  # which says no more than that


def test_half_a_message_and_one_that_means_nothing_are_not_heard(tmp_path):
    with node_with(tmp_path, "none") as (one, config):
        for data in (frame(b"x", MORE) + b"\0\x09ab", message(b"nothing")):
            with shaken(config["nodes"][0]["port"]) as raw:
                raw.sendall(data)
        eventually(lambda: counted(one)["unheard"] == 2)


@pytest.mark.parametrize("security", KINDS)
def test_peers_that_come_and_go_are_not_taken_for_strangers(tmp_path, security):
    with node_with(tmp_path, security, peers=2) as (one, config):
        for times in (1, 2):
            with DpwaConnection("w2", config) as two:
                eventually(lambda two=two: has_merged(two, one))
            eventually(lambda times=times: counted(one)["ended"] == times)
        assert counted(one)["unheard"] == 0
        assert sum(one.node.report()["handshakes_refused"].values()) == 0
