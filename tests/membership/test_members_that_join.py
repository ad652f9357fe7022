"""Nodes that come and go: from one address, with one file for all, by whatever door."""

import logging
import socket
import threading
import time
from contextlib import suppress

import pytest
from support.nodes import at_once, eventually
from support.open_cluster import cluster
from support.ports import free_ports
from support.times import at_most

from dpwa.connection import DpwaConnection
from dpwa.errors import ClosedError, ConfigError, NameTakenError, PeerLost, UnknownNameError


def test_a_cluster_forms_from_one_address():
    with cluster() as nodes:
        nodes.add("a")
        for name in "bcdef":
            nodes.add(name, "a")
        nodes.agree()
        assert nodes.nodes["f"].wait_for_peers(5, 1.0)
        eventually(lambda: all(v is not None for v in nodes.gossip().values()))


def test_any_living_node_lets_a_newcomer_in():
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.agree()
        nodes.close("a")
        nodes.add("c", "b")
        nodes.agree()
        nodes.add("d", "tcp://127.0.0.1:1", "c")  # nobody is at the first one
        nodes.agree()


def test_a_node_that_leaves_is_missed_by_nobody(caplog):
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.add("c", "a")
        nodes.agree()
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "dpwa"):
            nodes.close("c")
            nodes.agree()
        assert time.monotonic() - began < at_most(2.0)  # a suspicion would take longer
        assert not [r for r in caplog.records if r.name == "dpwa.members"]


def test_a_node_that_leaves_as_soon_as_it_has_come_is_missed_by_nobody(caplog):
    with cluster() as nodes, caplog.at_level(logging.WARNING, "dpwa"):
        nodes.add("a")
        for name in "bcdefg":
            nodes.add(name, "a")
            nodes.close(name)
        nodes.agree()
        assert not [r for r in caplog.records if r.name == "dpwa.members"]


def test_a_node_may_begin_alone_and_keep_asking_if_it_is_told_to():
    (port,) = free_ports(1)
    with cluster() as nodes:
        nodes.add("b", f"tcp://127.0.0.1:{port}", alone=True)
        nodes.add("a", listen=f"tcp://127.0.0.1:{port}")
        nodes.agree()


def test_of_two_that_know_each_other_only_one_may_begin_alone():
    here, there = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    with cluster() as nodes:
        nodes.add("a", there, listen=here, alone=True)
        nodes.add("b", here, listen=there)
        nodes.agree()


def test_one_file_serves_listed_nodes_and_newcomers():
    (port,) = free_ports(1)
    listed = [{"name": "a", "host": "127.0.0.1", "port": port}]
    with cluster(nodes=listed) as nodes:
        assert nodes.add("a").node.endpoint == f"tcp://127.0.0.1:{port}"
        nodes.add("b")  # it asks those that are listed
        nodes.add("c")
        nodes.agree()


def test_a_living_node_keeps_its_name():
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.agree()
        with pytest.raises(NameTakenError, match=r"b is taken by the living node at tcp://127"):
            nodes.add("b", "a")
        with pytest.raises(NameTakenError, match=r"the name a is taken"):
            nodes.add("a", "b", "a")
        nodes.agree()
    assert not [t for t in threading.enumerate() if t.name.startswith("dpwa")]


def test_a_restarted_node_takes_its_own_place_again():
    with cluster() as nodes:
        nodes.add("a")
        before = nodes.add("b", "a").node.endpoint
        nodes.agree()
        nodes.close("b")
        after = nodes.add("b", "a").node.endpoint  # at another port, while news of its end spread
        nodes.agree()
        assert before != after
        eventually(lambda: all(v is not None for v in nodes.gossip().values()))


def test_a_wrong_address_is_explained_to_whoever_has_it(caplog):
    (port,) = free_ports(1)
    with cluster() as nodes, caplog.at_level(logging.WARNING, "dpwa.members"):
        nodes.add("a")
        nodes.add("b", "a", advertise=f"tcp://127.0.0.1:{port}", alone=True)
        eventually(lambda: "cannot connect" in caplog.text, 30.0)
        (problem,) = {r.getMessage() for r in caplog.records if r.name == "dpwa.members"}
        assert f"a cannot connect to tcp://127.0.0.1:{port}, the endpoint in the request" in problem
        assert "only tries the address that sent the request" in problem
        assert nodes.nodes["a"].peers == ()


def test_an_address_of_somebody_else_lets_nobody_in():
    with cluster() as nodes, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        nodes.add("a")
        nodes.add("b", "a")
        nodes.agree()
        nodes.add("c", "a", advertise=nodes.endpoint("b"), alone=True)
        assert set(nodes.nodes["a"].peers) == {"b"}


def test_who_runs_another_algorithm_is_not_let_in(caplog):
    with cluster() as nodes, caplog.at_level(logging.WARNING, "dpwa.members"):
        nodes.add("a")
        nodes.add("b", "a", algorithm="lsgd", alone=True)
        eventually(lambda: "a runs algorithm gossip, not lsgd" in caplog.text, 30.0)
        assert nodes.nodes["a"].peers == nodes.nodes["b"].peers == ()


def test_many_that_come_at_once_are_all_let_in():
    with cluster() as nodes:
        nodes.add("w0")
        at_once([lambda n=n: nodes.add(f"w{n}", "w0") for n in range(1, 10)])
        nodes.agree(timeout_s=20.0)


def test_without_join_nobody_else_takes_part():
    with pytest.raises(UnknownNameError, match="no node is named 'b'"):
        DpwaConnection("b", {"nodes": [{"name": "a", "port": free_ports(1)[0]}]})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"join": ["10.0.0.1:7000"]}, r"join\[0\]: expected tcp://host:port, or NAME@tcp://host"),
        ({"join": ["a b@tcp://h:1"]}, r"join\[0\]: expected tcp://host:port"),
        ({"join": [], "listen": "tcp://*"}, r"listen: expected tcp://host:port, where"),
        ({"join": [], "advertise": "tcp://h:0"}, r"advertise: expected tcp://host:port"),
        ({"join": [], "topology": "file", "file": {"path": "x"}}, "because `join` is set"),
        ({"join": [], "lr_spread": "linear"}, "lr_spread: expected none"),
        (
            {"nodes": [{"name": "a", "port": 1}], "listen": "tcp://h:1"},
            "expected `join` to be set, too",
        ),
        (
            {"nodes": [{"name": "a", "port": 1}], "alone": True},
            "alone: expected `join` to be set, too",
        ),
        ({"nodes": [{"name": "a", "port": 1}], "state_dir": "x"}, "state_dir: expected `join`"),
        ({"join": [], "join_timeout_s": 0}, "join_timeout_s: expected"),
        ({}, "nodes: missing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        DpwaConnection("a", settings)


def test_a_name_is_a_name():
    with pytest.raises(UnknownNameError, match="1 to 64 letters"):
        DpwaConnection("no name", {"join": []})


def test_the_report_tells_who_is_there():
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.agree()
        report = nodes.nodes["a"].node.report()["membership"]
        assert report["components"] == 1
        members = {m["name"]: m for m in report["members"]}
        assert members["b"]["status"] == "alive"
        assert members["b"]["endpoint"] == nodes.endpoint("b")
        view = nodes.nodes["b"].node.report()["membership"]["view"]
        eventually(lambda: nodes.nodes["a"].node.report()["membership"]["view"] == view)


def test_collectives_take_in_who_joins():
    with cluster() as nodes:
        counts, is_over = {}, threading.Event()

        def work(name, node):
            while not is_over.is_set():
                with suppress(PeerLost, ClosedError):  # of whom it is left to join, or has left
                    _, counts[name] = node.all_reduce(1.0, "sum", timeout_s=5.0)
                time.sleep(0.01)

        def start(name, *at):
            threads.append(threading.Thread(target=work, args=(name, nodes.add(name, *at))))
            threads[-1].start()

        threads = []
        try:
            start("a")
            start("b", "a")
            eventually(lambda: counts == {"a": 2, "b": 2}, timeout_s=20.0)
            start("c", "b")
            eventually(lambda: counts == {"a": 3, "b": 3, "c": 3}, timeout_s=20.0)
            nodes.close("a")
            eventually(lambda: (counts["b"], counts["c"]) == (2, 2), timeout_s=20.0)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
