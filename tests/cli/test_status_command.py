"""`dpwa status`, against nodes that answer, are down, are silent or answer nonsense."""

import json
import math
import socket

import numpy as np
import pytest
from support.commands import run_dpwa
from support.imposters import imposter
from support.nodes import config_of, eventually, free_ports

from dpwa import DpwaConnection
from dpwa.cli.status import MEMORY_PARTS, _number
from dpwa.wire.messages import NotReady, Status, encode, pack


@pytest.fixture
def config():
    return config_of(2)


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(config))
    return path


def status(file, *options):
    return run_dpwa("status", "-c", file, "--timeout-ms", 500, *options)


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
    assert table.stdout == ""  # people's text is on the other stream
    for text in ("clock", "0.25", "5 kB", "w2 (1000)"):
        assert text in table.stderr


def test_the_table_adds_up_what_a_node_keeps_in_memory(config, file):
    config = {**config, "transport": "tcp", "codec": "topk"}
    silent = {**config, "fetch_probability": 0}
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", silent) as two:
        two.update_send(np.ones(100_000, np.float32))

        def merged():
            one.update_send(np.ones(100_000, np.float32))
            return one.update_wait()[1]

        eventually(merged)
        _, nodes = rows(file)
        table = status(file)
    slots = nodes["w1"]["memory"]["slots"]
    assert memory_cell(table, "w1") == f"{0.4 * (slots + 2):.3g} MB"  # received, and held of w2
    assert memory_cell(table, "w2") == "800 kB"  # published, and held of w1


def memory_cell(table, node):
    row = next(line for line in table.stderr.splitlines() if line.startswith(node))
    return " ".join(row.split()[9:11])  # sent and received are two words, too


def test_a_table_of_four_busy_nodes_fits_80_columns(file):
    peers = [{"name": f"w{n}", "score": 1000, "health": "unreachable"} for n in range(2, 5)]
    memory = dict.fromkeys(MEMORY_PARTS, 10**9)
    traffic = {"bytes_sent": 13_500_000_000, "bytes_received": 1_350_000_000_000}
    report = {"clock": 1303.5, "loss": 3.542e-05, "version": 12099, "merges": 12073}
    answer = [
        encode(Status(request=1)),
        pack({**report, **traffic, "memory": memory, "peers": peers}),
    ]
    with imposter(json.loads(file.read_text())["nodes"][0]["port"], lambda frames: [answer]):
        lines = status(file).stderr.splitlines()
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


def test_a_node_that_is_down_is_named_and_the_exit_code_is_3(config, file):
    with DpwaConnection("w1", config):
        exit_code, nodes = rows(file)
        table = status(file)
    assert exit_code == table.exit_code == 3
    assert nodes["w1"]["reachable"]
    assert not nodes["w2"]["reachable"]
    port = config["nodes"][1]["port"]
    assert f"w2: not reachable: nothing answers at tcp://127.0.0.1:{port}" in table.stderr


def test_a_place_where_nobody_is_is_told_whole_and_once(tmp_path):
    place = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    file = tmp_path / "join.yaml"
    file.write_text(f"join: ['{place}']\n")
    told = f"{place}: not reachable: nothing answers at {place}\n"
    assert status(file).stderr == told


def test_the_table_has_long_names_whole(tmp_path):
    name = "Q" * 64
    file = tmp_path / "long.yaml"
    file.write_text(json.dumps({"nodes": [{"name": name, "port": free_ports(1)[0]}]}))
    with DpwaConnection(name, file):
        table = status(file).stderr
    assert table.count("Q") == 64


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [({}, False), ({"algorithm": "lsgd"}, True), ({"interpolation": "leader"}, True)],
)
def test_leaders_are_told_where_nodes_follow_them(config, file, settings, is_told):
    file.write_text(json.dumps({**config, **settings}))
    with DpwaConnection("w1", config) as one:
        one.update_send(b"x", 0.5)
        assert ("leader w1" in status(file).stderr) is is_told


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
        ([encode(Status(request=1)), pack([1])], "something that is no status"),
        ([pack({"v": 9})], "the peer speaks protocol version 9, this node speaks 5"),
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
    assert "[red]" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_configuration_is_a_usage_error(tmp_path):
    result = status(tmp_path / "missing.yaml")
    assert result.exit_code == 2
    assert "missing.yaml" in result.stderr


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12346"), (999.96, "1000"), (0.123456, "0.1235"), (7, "7"), (None, "?"), ("x", "?")],
)
def test_numbers_are_short_and_have_no_exponent_that_nobody_reads(value, shown):
    assert _number(value) == shown
