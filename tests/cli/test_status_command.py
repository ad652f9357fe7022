"""`dpwa status`, against nodes that answer, are down, are silent or answer nonsense."""

import json
import math
import random
import re
import socket

import numpy as np
import pytest
import torch
from support.commands import run_dpwa
from support.imposters import imposter
from support.nodes import config_of, eventually, is_connected
from support.ports import free_ports
from support.times import SetClock

import dpwa
from dpwa import DpwaConnection, DpwaPyTorchAdapter
from dpwa.cli.screen import age
from dpwa.cli.status import _number, _peer
from dpwa.node.peers import PeerTable
from dpwa.node.report import read_report
from dpwa.observe.figures import MEMORY_PARTS
from dpwa.policy.health import Outcome
from dpwa.transport.link import LinkState
from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.messages import NotReady, Status, encode, pack


@pytest.fixture
def config():
    return config_of(2)


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(config))
    return path


def status(file, *options, environment=None):
    return run_dpwa("status", "-c", file, "--timeout-ms", 500, *options, environment=environment)


def rows(file):
    result = status(file, "--json")
    return result.exit_code, {row["name"]: row for row in json.loads(result.stdout)["nodes"]}


def test_every_node_tells_its_clock_loss_scores_and_traffic(config, file):
    config = {**config, "transport": "tcp"}
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        two.update_send(bytes(5000), 0.25)

        def merged():
            one.update_send(bytes(5000), 0.5)
            return one.update_wait(0.5)[0]

        eventually(merged)
        exit_code, nodes = rows(file)
        table = status(file)
    assert exit_code == 0
    assert (nodes["w2"]["clock"], nodes["w2"]["loss"], nodes["w2"]["version"]) == (1.0, 0.25, 1)
    assert nodes["w1"]["merges"] == 1
    assert nodes["w1"]["bytes_received"] == nodes["w2"]["bytes_sent"] == 5000
    assert nodes["w1"]["peers"][0]["score"] == 1000
    assert nodes["w1"]["peers"][0]["health"] == "alive"
    assert table.exit_code == 0
    assert table.stderr == ""  # results are on one stream only
    for text in ("clock", "0.25", "5 kB", "w2 (1000)"):
        assert text in table.stdout


def test_the_table_adds_up_what_a_node_keeps_in_memory(config, file):
    config = {**config, "transport": "tcp"}
    silent = {**config, "fetch_probability": 0}
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", silent) as two:
        two.update_send(np.ones(1_000_000, np.float32))

        def merged():
            one.update_send(np.ones(1_000_000, np.float32))
            return one.update_wait()[1]

        eventually(merged)
        _, nodes = rows(file)
        table = status(file)
    slots = nodes["w1"]["memory"]["slots"]
    assert memory_cell(table, "w1") == f"{4 * (slots + 1)} MB"  # published, and received
    assert memory_cell(table, "w2") == "4 MB"  # published


def memory_cell(table, node):
    row = next(line for line in table.stdout.splitlines() if line.startswith(node))
    return " ".join(row.split()[10:12])  # sent and received are two words, too


def test_a_table_of_four_busy_nodes_fits_80_columns(file):
    peers = [{"name": f"w{n}", "score": 1000, "health": "unreachable"} for n in range(2, 5)]
    memory = dict.fromkeys(MEMORY_PARTS, 10**9)
    traffic = {"bytes_sent": 13_500_000_000, "bytes_received": 1_350_000_000_000}
    report = {
        "gossip": {"steps": 12099},
        "clock": 1303.5,
        "loss": 3.542e-05,
        "version": 12099,
        "merges": 12073,
    }
    answer = [
        encode(Status(request=1)),
        pack({**report, **traffic, "memory": memory, "peers": peers}),
    ]
    with imposter(json.loads(file.read_text())["nodes"][0]["port"], lambda frames: [answer]):
        lines = status(file, environment={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for shown in (
        "1304",
        "3.542e-05",
        "12099",
        "12073",
        "13.5 GB",
        "1.35 TB",
        "5 GB",
        "unreachable)",
    ):
        assert shown in text


def test_one_node_can_be_asked_alone_as_a_probe_does(config, file):
    with DpwaConnection("w1", config):
        there, not_there = status(file, "--node", "w1"), status(file, "--node", "w2")
        rows = json.loads(status(file, "--node", "w1", "--json").stdout)["nodes"]
    assert (there.exit_code, not_there.exit_code) == (0, 3)
    assert [row["name"] for row in rows] == ["w1"]
    unknown = status(file, "--node", "w3")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "no node is named 'w3'" in unknown.stderr


def test_a_node_that_is_down_is_named_and_the_exit_code_is_3(config, file):
    with DpwaConnection("w1", config):
        exit_code, nodes = rows(file)
        table = status(file)
    assert exit_code == table.exit_code == 3
    assert nodes["w1"]["reachable"]
    assert not nodes["w2"]["reachable"]
    port = config["nodes"][1]["port"]
    assert f"w2: not reachable: nothing answers at tcp://127.0.0.1:{port}" in table.stdout


def test_a_peer_that_never_started_is_told_as_such_and_has_no_score(config, file):
    with DpwaConnection("w1", config):
        _, nodes = rows(file)
        table = status(file).stdout
    assert nodes["w1"]["peers"][0]["heard_s"] is None
    assert "w2 (no message yet)" in table
    assert "1000" not in table
    assert table.splitlines()[-1].endswith(". No peer has received a message from this node")


def test_of_a_peer_that_has_ended_the_time_since_is_told(config, file):
    with DpwaConnection("w1", config) as one:
        with DpwaConnection("w2", config) as two:
            eventually(lambda: is_connected(one, "w2") and is_connected(two, "w1"))
        eventually(lambda: one.node.report()["peers"][0]["health"] == "finished")
        result = status(file)
        examined = run_dpwa("doctor", "-c", file)
    assert re.search(r"w2 \(finished \d+ s ago\)", result.stdout)
    assert re.search(
        r"w2: has finished\. A peer last received a message from this node \d+ s ago$",
        result.stdout,
        re.MULTILINE,
    )
    assert examined.stdout == "w2 has finished\n1 of 2 nodes answer, no problems\n"
    assert (result.exit_code, examined.exit_code) == (0, 0)


@pytest.mark.parametrize(
    ("peer", "shown"),
    [
        ({"score": 900, "health": "alive", "heard_s": 1.0}, "w2 (900)"),
        ({"score": 900, "health": "unreachable", "heard_s": None}, "w2 (no message yet)"),
        (
            {"score": 9, "health": "silent", "heard_s": 130.2},
            "w2 (9, silent, last message 2 min ago)",
        ),
        (
            {
                "score": 9,
                "health": "unreachable",
                "problem": "the connection was lost",
                "heard_s": 5,
            },
            "w2 (unreachable, last message 5 s ago)",
        ),
        ({"score": 9, "health": "other_model", "heard_s": 5}, "w2 (9, other model)"),
        ({"score": 1000, "health": "unreachable"}, "w2 (unreachable)"),  # of an older node
        ({"score": 1, "health": "left", "heard_s": "long"}, "w2 (left)"),
        ({"score": 1, "health": "left", "heard_s": 3.2}, "w2 (left 3 s ago)"),
    ],
)
def test_what_is_told_of_a_peer(peer, shown):
    (told,) = read_report({"peers": [{"name": "w2", **peer}]}).peers
    assert _peer(told) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (1e6, "12 d")],
)
def test_an_age_is_short(seconds, shown):
    assert age(seconds) == shown


def test_when_a_peer_was_last_heard_of():
    clock = SetClock(100.0)
    peer_table = PeerTable("w1", clock, random.Random(0))
    peer_table.add_peers({"w2": "tcp://a:1"})

    def heard_s():
        return peer_table.report(lambda _: {})[0].heard_s

    peer_table.record("w2", Outcome.UNREACHABLE)
    assert heard_s() is None
    peer_table.link_changed("w2", LinkState.UP)
    clock.time += 4.0
    peer_table.record("w2", Outcome.TIMED_OUT)
    assert heard_s() == 4.0
    peer_table.record("w2", Outcome.FETCHED)
    clock.time += 3.0
    assert heard_s() == 3.0
    # it was there until now
    peer_table.link_changed("w2", LinkState.DOWN, "the connection was lost")
    clock.time += 2.0
    peer_table.link_changed("w2", LinkState.DOWN, "nothing answers")
    assert heard_s() == 2.0


def test_at_40_columns_no_word_is_broken(config, file):
    with DpwaConnection("w1", config):
        text = status(file, environment={"COLUMNS": "40"}).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 40
    assert "w2 (no message yet)" in " ".join(text.split())
    assert "clock 0, steps 0, loss -, version 0, merges 0" in " ".join(text.split())


def test_a_place_where_nobody_is_is_told_whole_and_once(tmp_path):
    place = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    file = tmp_path / "join.yaml"
    file.write_text(f"join: ['{place}']\n")
    told = f"{place}: not reachable: nothing answers at {place}\n"
    assert status(file).stdout == told


def test_the_table_has_long_names_whole(tmp_path):
    name = "Q" * 64
    file = tmp_path / "long.yaml"
    file.write_text(json.dumps({"nodes": [{"name": name, "port": free_ports(1)[0]}]}))
    with DpwaConnection(name, file):
        table = status(file).stdout
    assert table.count("Q") == 64


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [({}, False), ({"algorithm": "lsgd"}, True), ({"interpolation": "leader"}, True)],
)
def test_leaders_are_told_where_nodes_follow_them(config, file, settings, is_told):
    config = {**config, **settings}
    file.write_text(json.dumps(config))
    with DpwaPyTorchAdapter(torch.nn.Linear(1, 1), "w1", config) as one:
        one.update_send(0.5)
        assert ("leader w1" in status(file).stdout) is is_told


def test_it_says_who_keeps_pace(config, file):
    config = {**config, "nodes": config["nodes"][:1], "algorithm": "together"}
    file.write_text(json.dumps(config))
    net = torch.nn.Linear(1, 1)
    with dpwa.connect(net, torch.optim.SGD(net.parameters()), name="w1", config=config) as one:
        one.update_send()
        assert "algorithm together\nin sync w1" in status(file).stdout


def test_a_diverged_loss_is_valid_json(config, file):
    with DpwaConnection("w1", config) as one:
        one.update_send(b"x", math.nan)
        _, nodes = rows(file)
    assert (nodes["w1"]["loss"], nodes["w1"]["diverged"]) == (None, True)


def test_a_silent_node_is_waited_for_no_longer_than_asked(config, file):
    with socket.create_server(("127.0.0.1", config["nodes"][1]["port"])):
        _, nodes = rows(file)
    assert nodes["w2"]["problem"] == "not reachable: no answer in time"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([b"\xc1"], "not msgpack"),
        ([encode(NotReady(request=1))], "answered with 'not_ready' instead"),
        ([encode(Status(request=1)), pack([1])], "data that are not a status"),
        (
            [pack({"v": 99})],
            f"the peer speaks protocol version 99, but this node speaks {PROTOCOL_VERSION}",
        ),
        ([], "connected, but no answer in time"),
    ],
)
def test_nonsense_is_told_as_such(config, file, answer, problem):
    with imposter(config["nodes"][1]["port"], lambda frames: [answer] if answer else []):
        _, nodes = rows(file)
    assert problem in nodes["w2"]["problem"]


def test_a_report_with_surprises_is_still_shown(config, file):
    report = {"clock": "x", "loss": [1], "peers": [7, {"name": "[red]"}], "bytes_sent": -1}
    answer = [encode(Status(request=1)), pack(report)]
    with imposter(config["nodes"][1]["port"], lambda frames: [answer]):
        result = status(file)
    assert "[red]" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_bad_configuration_is_a_usage_error(tmp_path):
    result = status(tmp_path / "missing.yaml")
    assert result.exit_code == 2
    assert "missing.yaml" in result.stderr


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12346"), (999.96, "1000"), (0.123456, "0.1235"), (7, "7"), (None, "?")],
)
def test_numbers_are_short_and_have_no_exponent_that_nobody_reads(value, shown):
    assert _number(value, "?") == shown
