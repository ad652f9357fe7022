"""A node that ends on purpose tells its peers so, and they have heard it when it is closed."""

import threading
import time
from contextlib import suppress

import numpy as np
from support.inside import context_of
from support.members import members
from support.nodes import at_once, config_of, eventually, is_connected, status_of
from support.ports import free_ports

from dpwa import DpwaConnection
from dpwa.node.serving.service import Listener, Service
from dpwa.transport.link import LinkState


class Holdup(Service):
    """Keeps the RxThread of a node from reading what comes, for a time."""

    handles = (type(None),)  # no message, but services without any are not called

    def __init__(self):
        self.begun, self.over = threading.Event(), threading.Event()
        self.seconds = 0.0

    def tick(self, now):
        if self.seconds:
            self.begun.set()
            seconds, self.seconds = self.seconds, 0.0
            time.sleep(seconds)
            self.over.set()
        return False


def hold_up(member, seconds):
    """Have its RxThread read nothing from now on, for a time."""
    holdup = Holdup()
    member.node.attach(holdup, Listener())
    holdup.seconds = seconds
    member.node.rx.wake()
    assert holdup.begun.wait(10.0)
    return holdup


class TxHoldup(Listener):
    """Keeps the TxThread of a node from seeing what its connections do, until it is let go."""

    def __init__(self, peer_table):
        self.begun, self.over = threading.Event(), threading.Event()
        self.peer_table = peer_table
        self.near = []  # whether a peer is taken for connected, with each event

    def tick(self, now):
        self.begun.set()
        self.over.wait(60.0)
        return 60.0

    def link_changed(self, peer, *_, **__):
        self.near.append(self.peer_table._peers[peer].is_near)


def are_connected(one, two):
    return is_connected(one.adapter.connection, "w2") and is_connected(two.adapter.connection, "w1")


def patience(monkeypatch, farewell_s):
    """Have nodes wait so long for answers to their goodbyes."""
    monkeypatch.setattr("dpwa.node.fetching.tx_thread.FAREWELL_S", farewell_s)
    monkeypatch.setattr("dpwa.node.threads.STOP_TIMEOUT_S", 2.0 * farewell_s + 2.0)


def test_a_peer_that_is_busy_has_heard_it_too(monkeypatch):
    patience(monkeypatch, 30.0)
    with members(config_of(2), [1.0, 2.0]) as (one, two):
        eventually(lambda: are_connected(one, two))
        hold_up(one, 0.5)
        two.adapter.close()
        assert context_of(one.node).peer_table.has_left("w2")


def test_a_goodbye_that_is_read_before_its_connection_is_seen_to_come_up_counts():
    config = config_of(2)
    with DpwaConnection("w1", config) as one:
        holdup = TxHoldup(context_of(one.node).peer_table)
        one.node.attach(Holdup(), holdup)
        assert holdup.begun.wait(10.0)
        with DpwaConnection("w2", config) as two:
            eventually(lambda: is_connected(two, "w1"))
            time.sleep(1.0)  # ZeroMQ connects meanwhile, on a thread of its own
        assert context_of(one.node).peer_table.has_left("w2")
        holdup.over.set()
        eventually(lambda: one.node.links["w2"] is LinkState.DOWN)
        eventually(lambda: status_of(one, "w2")["health"] == "finished")
        eventually(lambda: holdup.near[-1:] == [False])  # it was gone before it was met


def test_a_node_that_ends_before_its_connections_are_up_says_goodbye_when_they_are():
    config = config_of(2)
    alone = {**config, "nodes": config["nodes"][1:]}
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", alone) as two:
        holdup = TxHoldup(context_of(two.node).peer_table)
        two.node.attach(Holdup(), holdup)
        assert holdup.begun.wait(10.0)
        two.add_peer("w1", "127.0.0.1", config["nodes"][0]["port"])
        two.node.tx.request_stop()  # now it connects and ends in one turn
        holdup.over.set()
        two.close()
        assert context_of(one.node).peer_table.has_left("w2")


def test_whoever_has_heard_a_goodbye_is_not_connected_anew_to_the_node_that_leaves():
    config = config_of(2)
    with DpwaConnection("w1", config) as one:
        peer_table, tx = context_of(one.node).peer_table, one.node.tx
        eventually(lambda: one.node.links["w2"] is LinkState.DOWN)
        peer_table.peer_left("w2", "")
        tx.peer_left("w2")
        holdup = TxHoldup(peer_table)
        one.node.attach(Holdup(), holdup)
        assert holdup.begun.wait(10.0)
        with DpwaConnection("w2", config) as two:
            two.node.note_end(None)
            holdup.over.set()
            eventually(lambda: one.node.links["w2"] is LinkState.CONNECTING)
            time.sleep(0.3)  # for w2 to say who it is
            assert one.node.links["w2"] is LinkState.CONNECTING
            assert peer_table.has_left("w2")


def test_a_peer_that_left_and_is_back_elsewhere_is_not_taken_for_one_that_has_left():
    with members(config_of(2), [1.0, 2.0]) as (one, two):
        eventually(lambda: are_connected(one, two))
        one.node.tx.peer_left("w2")  # it is still connected
        one.node.remove_peer("w2")
        one.node.add_peer("w2", "127.0.0.1", free_ports(1)[0])  # it does not listen yet
        eventually(lambda: one.node.links["w2"] is LinkState.DOWN)
        assert status_of(one.adapter.connection, "w2")["health"] != "finished"


def test_a_peer_that_hangs_does_not_keep_a_node_from_ending(monkeypatch):
    patience(monkeypatch, 0.2)
    with members(config_of(2), [1.0, 2.0]) as (one, two):
        eventually(lambda: are_connected(one, two))
        holdup = hold_up(one, 3.0)
        two.adapter.close()
        assert not holdup.over.is_set()
        assert holdup.over.wait(60.0)  # else it could not be closed itself


def test_nodes_that_end_at_the_same_time_do_not_wait_for_each_other(monkeypatch):
    patience(monkeypatch, 200.0)
    with members(config_of(3), [1.0, 2.0, 3.0]) as nodes:
        eventually(lambda: are_connected(*nodes[:2]))
        began = time.monotonic()
        at_once([member.adapter.close for member in nodes])
        assert time.monotonic() - began < 100.0


def test_a_peer_has_finished_or_says_why_it_has_left():
    def train(node):
        eventually(lambda: is_connected(one, node.name) and is_connected(node, "w1"))
        for loss in (3.0, 2.0):
            node.update_send(np.ones(4), loss)
            node.update_wait(loss)
        return node

    config = config_of(5, timeout_ms=200)
    with DpwaConnection("w1", config) as one:
        one.update_send(np.ones(4), 1.0)
        with suppress(KeyError), DpwaConnection("w2", config) as broken:
            train(broken)
            raise KeyError
        with DpwaConnection("w3", config) as early:
            train(early)
        with DpwaConnection("w4", {**config, "needs_finish": False}) as done:
            train(done)
        with DpwaConnection("w5", config) as finished:
            train(finished).finish(np.ones(4), seconds=0.1, timeout_s=0.0)
        ended = {name: status_of(one, name) for name in ("w2", "w3", "w4", "w5")}
    assert {name: (peer["health"], peer["problem"]) for name, peer in ended.items()} == {
        "w2": ("left", "broken off by KeyError at update 2"),
        "w3": ("left", "without finish at update 2"),
        "w4": ("finished", ""),
        "w5": ("finished", ""),
    }
