"""A node with another name than expected, and a second node with a name, are refused and named."""

from contextlib import ExitStack

import numpy as np
import pytest
from support.inside import context_of
from support.nodes import at_once, config_of, eventually, is_connected, status_of
from support.ports import free_ports

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.node import name_clashes
from dpwa.node.name_clashes import clash_of
from dpwa.node.node import Node
from dpwa.node.query import diagnose, query_cluster
from dpwa.wire.messages import Identity


def exchanged(config, **ports):
    """The configuration with other ports of some nodes."""
    nodes = [{**node, "port": ports.get(node["name"], node["port"])} for node in config["nodes"]]
    return {**config, "nodes": nodes}


def told(caplog, code):
    return sorted({r.getMessage() for r in caplog.records if code in r.getMessage()})


def found_by_doctor(config):
    return [finding.text for finding in diagnose(query_cluster(load_config(config), 5.0))]


def train(nodes, rounds=5):
    def task(node):
        for _ in range(rounds):
            node.update_send(np.ones(10), 0.5)
            node.update_wait(0.5)

    at_once([lambda node=node: task(node) for node in nodes])


def merges_of(node, peer):
    return status_of(node, peer)["merges"]


def test_swapped_addresses_are_named_by_all_and_nothing_is_merged_through_them(caplog):
    right = config_of(3)
    ports = {node["name"]: node["port"] for node in right["nodes"]}
    swapped = exchanged(right, w1=ports["w2"], w2=ports["w1"])
    with ExitStack() as stack:
        one, two = (stack.enter_context(DpwaConnection(name, right)) for name in ("w1", "w2"))
        three = stack.enter_context(DpwaConnection("w3", swapped))
        for peer in ("w1", "w2"):
            eventually(lambda peer=peer: status_of(three, peer)["health"] == "mistaken")
        for node in (one, two):
            eventually(lambda node=node: node.node.report()["clashes"])
            eventually(lambda node=node: is_connected(node, "w3"))
        train([one, two, three])
        assert not is_connected(three, "w1")
        assert merges_of(three, "w1") == merges_of(three, "w2") == 0
        from_right, from_swapped = found_by_doctor(right), found_by_doctor(swapped)
    clash = "w3: peer {} is not connected, because names clash: {} answers at tcp://127.0.0.1:{} {}"
    assert told(caplog, "W007") == [
        clash.format("w1", "w2", ports["w2"], "[DPWA-W007]"),
        clash.format("w2", "w1", ports["w1"], "[DPWA-W007]"),
    ]
    expected = [
        "w1: w3 mistakes this node for w2. Compare the addresses in both configurations",
        "w2: w3 mistakes this node for w1. Compare the addresses in both configurations",
    ]
    assert told(caplog, "W090") == [f"{line} [DPWA-W090]" for line in expected]
    assert set(expected) < set(from_right)
    swapped = {f"w{a}: w{b} answers at the address of w{a}" for a, b in ("12", "21")}
    assert swapped < set(from_swapped)


@pytest.mark.parametrize("is_first", [False, True], ids=["comes later", "was there first"])
def test_a_second_node_with_a_name_is_refused_and_named_by_all(is_first, caplog, monkeypatch):
    monkeypatch.setattr(name_clashes, "CERTAIN_AFTER_S", 0.5)
    right, (elsewhere,) = config_of(2), free_ports(1)
    second = exchanged(right, w1=elsewhere)
    with ExitStack() as stack:
        two = stack.enter_context(DpwaConnection("w2", right))
        if not is_first:
            one = stack.enter_context(DpwaConnection("w1", right))
            eventually(lambda: is_connected(two, "w1"))
        other = stack.enter_context(DpwaConnection("w1", second))
        if is_first:
            eventually(lambda: is_connected(other, "w2"))
            one = stack.enter_context(DpwaConnection("w1", right))
        eventually(lambda: status_of(other, "w2")["health"] == "mistaken")
        assert not is_connected(other, "w2")
        at_once([lambda node=node: node.barrier(timeout_s=20) for node in (one, two)])
        assert f"tcp://127.0.0.1:{elsewhere}" in " ".join(found_by_doctor(right))
    where = f"tcp://127.0.0.1:{right['nodes'][0]['port']}"
    (line,) = told(caplog, "W091")
    assert line == (
        "w2: a second node with the name w1 is refused. It claims the address "
        f"tcp://127.0.0.1:{elsewhere}, but the node at {where} has that name and is alive "
        "[DPWA-W091]"
    )
    (line,) = told(caplog, "W007")
    assert line == (
        "w1: peer w2 is not connected, because names clash: "
        f"the name w1 is taken by the node at {where} [DPWA-W007]"
    )


def test_a_second_node_at_the_address_of_another_is_told_at_once_and_once(caplog, monkeypatch):
    monkeypatch.setattr(name_clashes, "CERTAIN_AFTER_S", 0.5)
    right = config_of(3)
    place = right["nodes"][2]["port"]
    own = exchanged(right, w1=place)
    own["nodes"].pop()
    with ExitStack() as stack:
        one = stack.enter_context(DpwaConnection("w1", right))
        second = stack.enter_context(DpwaConnection("w1", own))
        eventually(lambda: status_of(one, "w3")["health"] == "mistaken")
        eventually(lambda: told(caplog, "W091"))
        assert any("a second node" in text for text in second.node.report()["clashes"])
    where = f"tcp://127.0.0.1:{place}"
    problem = f"names clash: w1 answers at {where} [DPWA-W007]"
    assert told(caplog, "W007") == [f"w1: peer w3 is not connected, because {problem}"]
    repeated = [r for r in caplog.records if "w1 mistakes this node for w3" in r.getMessage()]
    assert len(repeated) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ""),
        ({"name": "w9"}, "w9 answers at tcp://h:5"),
        ({"incarnation": b"own-node"}, "this node itself answers at tcp://h:5"),
        ({"taken_by": "tcp://g:6"}, "the name w4 is taken by the node at tcp://g:6"),
    ],
)
def test_what_is_wrong_with_the_node_that_answers(said, expected):
    right = {"name": "w5", "incarnation": b"the-peer", "taken_by": "", "is_certain": False}
    answer = Identity(request=0, **{**right, **said})
    assert clash_of(answer, "w5", "tcp://h:5", ("w4", b"own-node")) == expected


def test_a_node_knows_which_process_it_is_before_it_answers(monkeypatch):
    known, real = [], Node._open

    def begin(node):
        known.append(context_of(node).peer_table.own_process[0])
        real(node)

    monkeypatch.setattr(Node, "_open", begin)
    with DpwaConnection("w1", config_of(1)) as alone:
        own = context_of(alone.node).peer_table.own_process[0]
    assert any(own)
    assert known == [own]
