"""Mistakes that were made once."""

import gc
import json
import logging
import signal
import socket
import time

import numpy as np
import pytest
from support.inside import member_list_of
from support.nodes import eventually
from support.open_cluster import cluster
from support.ports import free_ports
from support.processes import descriptors, ended, start
from support.strangers import question, request_of

from dpwa.config import load_config
from dpwa.config.endpoints import split_tcp
from dpwa.connection import DpwaConnection
from dpwa.errors import AddressError
from dpwa.node import own_address
from dpwa.policy.members.states import MemberEntry, MemberStatus
from dpwa.policy.members.view import Membership
from dpwa.transport.link import LinkState
from dpwa.wire import limits
from dpwa.wire.members import Roster, TurnedAway, pack_entries, unpack_entries


def test_who_listens_on_every_address_does_not_say_that_it_is_on_loopback(monkeypatch):
    config = load_config({"join": [], "listen": "tcp://*:7000"}, environ={})
    monkeypatch.setattr(own_address, "local_address", lambda toward: "10.0.0.7")
    own = own_address.OwnAddress.from_config(config, "a")
    assert own.endpoint("tcp://0.0.0.0:7000") == "tcp://10.0.0.7:7000"
    monkeypatch.setattr(own_address, "local_address", lambda toward: "127.0.0.1")
    with pytest.raises(AddressError, match="Set `advertise` or `listen`"):
        own_address.OwnAddress.from_config(config, "a")
    told = load_config({**config.to_mapping(), "advertise": "tcp://h:1"}, environ={})
    assert (
        own_address.OwnAddress.from_config(told, "a").endpoint("tcp://0.0.0.0:7000") == "tcp://h:1"
    )


def test_who_joins_at_a_name_that_has_no_address_yet_does_not_listen_on_loopback(monkeypatch):
    config = load_config({"join": ["tcp://first.test:1", "tcp://second.test:1"]}, environ={})
    known, asked = {"second.test"}, []
    monkeypatch.setattr(own_address, "has_address", known.__contains__)
    monkeypatch.setattr(
        own_address, "local_address", lambda toward: asked.append(toward) or "127.0.0.1"
    )
    own_address.OwnAddress.from_config(config, "a")
    known.clear()
    own_address.OwnAddress.from_config(config, "a")
    assert asked == ["second.test", own_address.ELSEWHERE]


def test_a_node_that_is_let_in_outlives_lives_of_hosts_whose_clock_was_ahead():
    restarted = Membership(MemberEntry("b", "tcp://h:2", incarnation=100))
    stale = MemberEntry("b", "tcp://h:1", incarnation=500, status=MemberStatus.SUSPECT)
    restarted.outlive([MemberEntry("a", "tcp://h:3", incarnation=900), stale])
    assert restarted.own.incarnation == 501
    restarted.receive_entries([stale], now=0.0)
    assert restarted.replaced_by is None
    restarted.outlive([stale])
    assert restarted.own.incarnation == 501


def test_a_restart_with_a_clock_that_was_set_back_is_a_member(monkeypatch):
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        config = json.dumps({"join": [nodes.endpoint("a")], "log_level": "error"})
        child = start("gossip.py", "c", config)
        with ended(child):
            child.stdout.readline()
            eventually(lambda: all("c" in node.peers for node in nodes.nodes.values()))
        assert child.returncode == -signal.SIGKILL
        now = time.time()
        monkeypatch.setattr("dpwa.runtime.time.time", lambda: now - 3600.0)
        nodes.add("c", "a")
        nodes.agree(timeout_s=15.0)
        assert not member_list_of(nodes.nodes["c"]).is_replaced


def test_news_of_as_many_members_as_there_may_be_fit_a_message():
    longest = "tcp://" + "h" * (limits.MAX_ENDPOINT_CHARACTERS - 11) + ":7000"
    entries = [
        MemberEntry(str(n).rjust(limits.MAX_NAME_CHARACTERS, "w"), longest, 2**53 - 1, 2**53 - 1)
        for n in range(limits.MAX_ROSTER_ENTRIES)
    ]
    packed = pack_entries(entries)
    assert len(packed) <= limits.MAX_ROSTER_BYTES
    assert unpack_entries(packed) == tuple(entries)


def test_nobody_is_let_in_unchecked_while_another_call_goes_to_its_address():
    with cluster() as nodes, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        nodes.add("a")
        hole = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        where = nodes.endpoint("a")
        answers = [
            question(where, request_of(name, hole), pack_entries([MemberEntry(name, hole, 1)]))
            for name in ("ghost1", "ghost2")
        ]
        assert all(isinstance(answer, TurnedAway) for answer in answers)
        assert nodes.nodes["a"].peers == ()


def test_who_says_that_it_is_where_this_node_is_becomes_no_peer():
    with cluster() as nodes:
        a = nodes.add("a")
        nodes.add("b", "a")
        roster = Roster(request=1, name="x", incarnation=1, digest=b"", asks=True)
        forged = pack_entries([MemberEntry("x", a.node.endpoint, 1)])
        assert isinstance(question(a.node.endpoint, roster, forged), Roster)
        nodes.agree()
        assert "x" not in a.peers


def test_an_address_to_ask_that_is_the_node_itself_hides_no_other():
    ports = free_ports(2)
    places = [f"tcp://127.0.0.1:{port}" for port in ports]
    with cluster() as nodes:
        nodes.add("a", listen=places[0])
        nodes.add("b", *places, listen=places[1])
        nodes.agree()


def test_the_memory_of_members_that_have_left_is_not_mapped_any_more():
    with cluster() as nodes:
        a = nodes.add("a")

        def visit(name):
            with DpwaConnection(name, {"join": [a.node.endpoint], "seed": 1}) as guest:
                assert guest.wait_for_peers(1)
                assert a.wait_for_peers(1)
                for node in (a, guest):
                    assert node.collectives.contacts.offer_memory()  # as a first collective does
                eventually(lambda: a.collectives.contacts.are_settled([name]))
                for node in (a, guest, a, guest):
                    node.update_send(np.zeros(4), 1.0)
                    node.update_wait(1.0)
            eventually(lambda: not a.peers)
            del guest, node
            gc.collect()

        visit("p0")
        before = descriptors()
        for number in range(1, 6):
            visit(f"p{number}")
        eventually(lambda: descriptors() <= before + 1)  # ZeroMQ's own thread closes them


def test_nothing_is_left_of_a_connection_that_could_not_be_made(monkeypatch, caplog):
    def fails(node, *rest):
        raise KeyboardInterrupt

    with cluster() as nodes, caplog.at_level(logging.ERROR):
        nodes.add("a")
        monkeypatch.setattr("dpwa.connection.States", fails)
        with pytest.raises(KeyboardInterrupt):
            nodes.add("b", "a")
        monkeypatch.undo()
        nodes.add("b", "a")  # the name is free
        nodes.agree()


def test_connections_are_waited_for_not_names():
    with cluster() as nodes:
        nodes.add("a")
        b = nodes.add("b", "a")
        assert b.wait_for_peers(1, 10.0)
        b.update_send(np.zeros(4), 1.0)
        eventually(lambda: b.node.links["a"] is LinkState.UP)
        assert split_tcp(b.node.endpoint)


def test_without_join_all_are_in_view():
    with DpwaConnection(
        "w1", {"nodes": [{"name": f"w{n}", "port": p} for n, p in enumerate(free_ports(2), 1)]}
    ) as node:
        assert node.wait_for_peers(1)
        assert not node.wait_for_peers(2)
