"""`dpwa doctor`: what is wrong between nodes that really run."""

import json
import platform
import re
import socket
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from support.commands import run_dpwa
from support.imposters import imposter
from support.keys import key_folders
from support.nodes import config_of, eventually
from support.open_cluster import cluster
from support.ports import free_ports

import dpwa
from dpwa.connection import DpwaConnection
from dpwa.discovery.interfaces import OwnHost
from dpwa.node.query import StatusAnswer, diagnose
from dpwa.node.report import read_report
from dpwa.wire.messages import Status, encode, pack


@pytest.fixture
def nodes():
    with ExitStack() as stack:

        def start(config, *names, size=4):
            made = [stack.enter_context(DpwaConnection(name, config)) for name in names]
            for node in made:
                node.update_send(np.zeros(size), 1.0)
            return made

        yield start


def written(path, config):
    file = path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def rounds(made, check, size=4):
    def ask():
        for node in made:
            node.update_send(np.zeros(size), 1.0)
            node.update_wait(1.0)
        return check()

    eventually(ask)


def test_all_is_well(tmp_path, nodes):
    config = config_of(2)
    made = nodes(config, "w1", "w2")
    rounds(made, lambda: all(node.node.report()["merges"] for node in made))
    result = run_dpwa("doctor", "-c", written(tmp_path, config))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "2 of 2 nodes answer, no problems",
    ]


def test_the_network_card_that_the_environment_names_is_told_and_so_is_a_wrong_one(tmp_path):
    file = written(tmp_path, {"nodes": [{"name": "w1", "host": "w1.invalid", "port": 7000}]})
    named = run_dpwa("doctor", "-c", file, "--json", environment={"NCCL_SOCKET_IFNAME": "=lo"})
    assert json.loads(named.stdout)["this_machine"] == {
        "host": "127.0.0.1",
        "reason": "of lo, because NCCL_SOCKET_IFNAME==lo",
    }
    wrong = run_dpwa("doctor", "-c", file, environment={"GLOO_SOCKET_IFNAME": "ib77"})
    assert "! this machine: GLOO_SOCKET_IFNAME=ib77: expected one of " in wrong.stdout
    assert "peers reach this machine at" not in wrong.stdout


def test_for_nodes_of_other_hosts_it_tells_the_address_of_this_machine(tmp_path, monkeypatch):
    own = OwnHost("10.0.0.3", "of eth0, on the route to 10.0.0.1")
    monkeypatch.setattr("dpwa.discovery.interfaces.own_host", lambda environ, toward: own)
    file = written(tmp_path, {"nodes": [{"name": "w1", "host": "w1.invalid", "port": 7000}]})
    first = run_dpwa("doctor", "-c", file).stdout.splitlines()[0]
    assert first == "peers reach this machine at 10.0.0.3, of eth0, on the route to 10.0.0.1"


def test_nodes_at_sockets_of_files_need_no_network_card(tmp_path):
    file = written(tmp_path, {"nodes": [{"name": "w1", "endpoint": f"ipc://{tmp_path}/w1"}]})
    assert json.loads(run_dpwa("doctor", "-c", file, "--json").stdout)["this_machine"] is None


def test_who_is_not_there_is_told_with_where_and_why(tmp_path, nodes):
    config = config_of(2)
    nodes(config, "w1")
    result = run_dpwa("doctor", "-c", written(tmp_path, config), "--json")
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert answer["nodes"] == ["w1", "w2"]
    endpoint = f"tcp://127.0.0.1:{config['nodes'][1]['port']}"
    why = f"nothing answers at {endpoint}: Connection refused"
    assert {"node": "w2", "problem": f"w2: not reachable: {why}"} in answer["problems"]


def test_a_firewall_that_drops_connections_is_told_from_a_refusal(tmp_path):
    with socket.socket() as full, ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # then Linux drops what comes
            each = waiting.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        node = {"name": "w4", "host": "127.0.0.1", "port": full.getsockname()[1]}
        file = written(tmp_path, {"nodes": [node]})
        result = run_dpwa("doctor", "-c", file, "--timeout-ms", "200")
    assert result.stdout.startswith("! w4: not reachable: no answer in time: timed out\n")


def test_a_peer_without_a_connection_is_told_before_anything_was_fetched():
    peer = {"name": "w9", "endpoint": "tcp://h:9", "health": "unknown", "problem": "unknown host h"}
    for uptime_s, expected in ((1.0, []), (9.0, [(True, "w9")])):
        told = report("w3", uptime_s=uptime_s, peers=[peer])
        found = diagnose({"w3": told})
        assert [(finding.is_unreachable, finding.node) for finding in found] == expected
    assert found[0].text == "w9 at tcp://h:9: w3 says that w9 cannot be reached: unknown host h"


def test_what_several_nodes_say_of_a_peer_is_told_once():
    def peer(name, problem):
        return {"name": name, "endpoint": "tcp://h:9", "health": "unreachable", "problem": problem}

    answers = {
        "w1": report("w1", peers=[peer("w4", "unknown host h"), peer("w5", "nothing answers")]),
        "w2": report("w2", peers=[peer("w4", "nothing answers"), peer("w5", "nothing answers")]),
        "w3": report("w3", peers=[peer("w4", "unknown host h")]),
        "w4": report("w4"),
        "w5": StatusAnswer(None, "not reachable: no answer in time"),
    }
    assert [finding.text for finding in diagnose(answers)] == [
        "w5: not reachable: no answer in time",
        "w4 at tcp://h:9: w1, w3 say that w4 cannot be reached: unknown host h",
        "w4 at tcp://h:9: w2 says that w4 cannot be reached: nothing answers",
    ]


def test_a_node_that_cannot_write_its_files_is_told():
    told = {"checkpoints": {"problem": "no checkpoint can be written to ck (no space)"}}
    report = read_report({"name": "w7", "state": told, "run_log": {"problem": "the log is full"}})
    hostile = read_report({"name": "w8", "state": {"checkpoints": "x"}, "run_log": {"problem": 1}})
    answers = {"w7": StatusAnswer(report), "w8": StatusAnswer(hostile)}
    texts = [finding.text for finding in diagnose(answers)]
    assert texts == [
        "w7: no checkpoint can be written to ck (no space)",
        "w7: the log is full",
    ]


def test_who_is_silent_is_told(tmp_path, nodes):
    config = config_of(2)
    nodes(config, "w1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", config["nodes"][1]["port"]))
        silent.listen()
        result = run_dpwa("doctor", "-c", written(tmp_path, config), "--timeout-ms", "300")
    assert result.exit_code == 3
    assert "! w2: not reachable: no answer in time\n" in result.stdout


def test_another_model_is_told_by_both_sides(tmp_path, nodes):
    config = config_of(3)
    small = nodes(config, "w1", "w2")
    (large,) = nodes(config, "w3", size=5)
    rounds(small, lambda: small[0].node.report()["merges"])

    def is_noticed():
        for node, size in ((large, 5), *((node, 4) for node in small)):
            node.update_send(np.zeros(size), 1.0)
            node.update_wait(1.0)
        seen = [p for node in small for p in node.node.report()["peers"] if p["name"] == "w3"]
        is_reached = all(p["health"] != "unreachable" for p in seen)
        peers = large.node.report()["peers"]
        return is_reached and any(p["health"] == "other_model" for p in peers)

    eventually(is_noticed)
    result = run_dpwa("doctor", "-c", written(tmp_path, config))
    assert result.exit_code == 1
    assert "! w3 has model " in result.stdout
    assert re.search(r"w3 says that \S+ has a different model", result.stdout)


def test_settings_that_differ_are_told_before_any_training(tmp_path):
    config = config_of(3)
    others = {"merge": "interpolate", "constant": {"value": 0.25}, "timeout_ms": 1234}
    with ExitStack() as stack:
        for name, more in (("w1", {}), ("w2", others), ("w3", {})):
            stack.enter_context(DpwaConnection(name, {**config, **more}))
        result = run_dpwa("doctor", "-c", written(tmp_path, config))
    assert result.exit_code == 1
    assert "! w2 has merge interpolate, most others have delta\n" in result.stdout
    assert "! w2 has constant.value 0.25, most others have 0.5\n" in result.stdout
    assert "timeout_ms" not in result.stdout


def test_versions_and_clocks_that_differ_are_told_with_both_nodes(tmp_path):
    config = config_of(2)
    others = {"python": "3.9.1", "torch": "1.13.1+cu117"}
    with DpwaConnection("w1", {**config, "transport": "tcp"}) as w1:

        def answer(frames):
            told = w1.node.report()
            told |= {"name": "w2", "dpwa": "0.1", "versions": others, "time": told["time"] + 3600}
            return [[encode(Status(request=1)), pack(told)]]

        with imposter(config["nodes"][1]["port"], answer):
            result = run_dpwa("doctor", "-c", written(tmp_path, config))
    assert result.exit_code == 1
    for name, theirs, own in (
        ("dpwa", "0.1", dpwa.__version__),
        ("python", "3.9.1", platform.python_version()),
        ("torch", "1.13.1+cu117", torch.__version__),
    ):
        assert f"! w2 has {name} {theirs}, w1 has {own}\n" in result.stdout
    assert "! w2: its wall clock is 3600 s ahead of the clock of this machine\n" in result.stdout


def test_members_that_no_file_names_are_found(tmp_path):
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.add("c", "b")
        nodes.agree()
        file = written(tmp_path, {"join": [nodes.endpoint("a")]})
        result = run_dpwa("doctor", "-c", file, "--json")
        told = json.loads(result.stdout)
        assert told.pop("this_machine")["host"] == "127.0.0.1"
        assert told == {"nodes": ["a", "b", "c"], "problems": [], "taken_for_dead": {}, "ended": {}}
        status = json.loads(run_dpwa("status", "-c", file, "--json").stdout)
        assert [node["name"] for node in status["nodes"]] == ["a", "b", "c"]


def test_a_place_where_nobody_is_is_told_by_its_address(tmp_path):
    (port,) = free_ports(1)
    file = written(tmp_path, {"join": [f"tcp://127.0.0.1:{port}"]})
    result = run_dpwa("doctor", "-c", file)
    assert result.exit_code == 3
    assert f"! tcp://127.0.0.1:{port}: not reachable: nothing answers" in result.stdout
    assert result.stdout.endswith("0 of 1 nodes answer, 1 problem\n")


def test_members_that_are_taken_for_dead_are_told_though_they_may_have_ended_for_good(tmp_path):
    def member(name, port, status):
        return {"name": name, "endpoint": f"tcp://127.0.0.1:{port}", "status": status}

    (port,) = free_ports(1)
    members = [member("a", port, "alive"), member("b", 7001, "dead"), member("c", 7002, "left")]
    answer = [encode(Status(request=1)), pack({"name": "a", "membership": {"members": members}})]
    file = written(tmp_path, {"join": [f"tcp://127.0.0.1:{port}"]})
    with imposter(port, lambda frames: [answer]):
        result = run_dpwa("doctor", "-c", file)
        found = json.loads(run_dpwa("doctor", "-c", file, "--json").stdout)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "b was at tcp://127.0.0.1:7001. Its peers consider it dead",
        "1 of 1 nodes answer, no problems",
    ]
    assert found["taken_for_dead"] == {"b": "tcp://127.0.0.1:7001"}


def test_a_key_that_was_renewed_on_one_machine_only_is_told_as_a_key(tmp_path):
    folders = key_folders(tmp_path, "w1", "w2")
    own = folders["w2"]
    own.secret_file("w2").unlink()
    own.remove("w2")
    own.create("w2")  # and w1 still has the old one
    config = {**config_of(2), "security": "curve", "transport": "tcp"}

    def refused(node):
        return node.node.report()["handshakes_refused"]["unknown_key"]

    with (
        DpwaConnection("w1", {**config, "keys": str(folders["w1"].path)}) as one,
        DpwaConnection("w2", {**config, "keys": str(own.path)}) as two,
    ):
        eventually(lambda: refused(one) and refused(two))
        file = written(tmp_path, {**config, "keys": str(folders["w1"].path)})
        told = run_dpwa("doctor", "-c", file, "--as", "w1").stdout
        assert two.node.report()["handshakes_refused"]["protocol"] == 0
    assert "w1 has refused" in told
    assert "Compare `dpwa keys list` on both machines" in told
    assert "its key is not the key known here" in told
    assert "protocol" not in told
    assert "version" not in told


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("unknown_key", "keys list"), ("protocol", "`security`"), ("broken_off", "too long")],
)
def test_who_asks_in_vain_is_told_with_what_to_compare(reason, advice):
    counts = {"unknown_key": 0, "protocol": 0, "broken_off": 0, reason: 3}
    (finding,) = diagnose({"a": report("a", handshakes_refused=counts)})
    assert finding.text.startswith("a has refused 3 connections")
    assert advice in finding.text


def report(name, **more):
    return StatusAnswer(read_report({"name": name, "protocol": 7, **more}), ahead_s=0.1)


def test_a_version_an_algorithm_and_a_clock_that_differ_are_told():
    answers = {
        "a": report("a", algorithm="gossip", versions={"driver": "550.54"}),
        "b": report("b", algorithm="gossip"),
        "c": replace(
            report("c", protocol=4, algorithm="lsgd", versions={"driver": "470.82"}), ahead_s=-60.0
        ),
    }
    texts = [finding.text for finding in diagnose(answers)]
    assert texts == [
        "c has protocol version 4, most others have 7",
        "c has driver 470.82, a has 550.54",
        "c has algorithm lsgd, most others have gossip",
        "c: its wall clock is 60 s behind the clock of this machine",
    ]


def test_views_that_differ_are_told():
    def members(**states):
        return {"members": [{"name": n, "status": s} for n, s in states.items()]}

    answers = {
        "a": report("a", membership=members(a="alive", b="dead")),
        "b": report("b", membership=members(b="alive")),
    }
    texts = [finding.text for finding in diagnose(answers)]
    assert texts == [
        "b answers here, but the status of b on a is dead",
        "a answers here, but the status of a on b is unknown",
    ]


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"name": 3, "peers": 3, "membership": 3, "model": 3, "handshakes_refused": 3},
        {"peers": [3, {}, {"health": "silent"}, {"health": []}], "membership": {"members": [{}]}},
        {"protocol": [], "algorithm": {}, "model": {"fingerprint": 3}},
        {"handshakes_refused": {"x": "y", "unknown_key": 2}},
    ],
)
def test_foreign_reports_do_no_harm(nonsense):
    diagnose({"a": StatusAnswer(read_report(nonsense)), "b": report("b")})
