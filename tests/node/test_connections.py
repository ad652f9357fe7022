"""Nodes that know of many peers, and are connected to few of them at a time."""

import errno
import logging
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
from support.members import Member, gossip, members, settle, sum_of
from support.nodes import at_once, config_of, eventually, has_merged, status_of
from support.open_cluster import cluster
from support.ports import free_ports
from support.processes import descriptors
from support.times import HANGS_AFTER_S

from dpwa.config import load_config
from dpwa.connection import DpwaConnection
from dpwa.node.fetching import connections
from dpwa.node.fetching.connections import FEWEST, affordable
from dpwa.node.node import Node
from dpwa.node.serving.admission import Clients
from dpwa.policy import beginners
from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire.messages import AskStatus

MANY = 8
FEW = {"transport": "tcp", "connections": FEWEST}


def links_of(connection):
    """How many links a node has, whether they are up or not."""
    return sum(state is not LinkState.IDLE for state in connection.node.links.values())


def made(stack, config, count):
    nodes = [DpwaConnection(f"w{index}", config) for index in range(1, count + 1)]
    for node in nodes:
        stack.callback(node.close)
    return nodes


def test_of_a_long_list_two_nodes_find_each_other_and_hold_few_descriptors():
    names = 300
    before = descriptors()
    with ExitStack() as stack:
        nodes = made(stack, config_of(names, transport="tcp"), 2)
        eventually(lambda: descriptors() - before < 2 * 40)
        eventually(lambda: have_merged(nodes))  # they have asked those who are not there, too
        assert descriptors() - before < 2 * 100


def have_merged(nodes):
    """Make a round; whether each node has merged by then."""
    for node in nodes:
        node.update_send(np.ones(4), 1.0)
    for node in nodes:
        node.update_wait(1.0)
    return all(node.node.rounds.merges for node in nodes)


@pytest.mark.parametrize(
    "algorithm", ["gossip", pytest.param("symmetric", marks=pytest.mark.slow), "push_sum"]
)
def test_all_merge_while_each_has_few_connections(algorithm, monkeypatch):
    monkeypatch.setattr(beginners, "LEAD", math.inf)  # who takes over parameters keeps no sum
    config = config_of(MANY, algorithm=algorithm, initial_state="own", **FEW)
    with members(config, range(MANY)) as nodes:
        gossip(nodes, 25)
        settle(nodes)
        for member in nodes:
            eventually(lambda member=member: links_of(member.adapter.connection) <= FEWEST)
            assert member.x.min() > 0.0
            assert member.x.max() < MANY - 1
        if algorithm != "gossip":
            assert float(sum_of(nodes)[0]) == pytest.approx(sum(range(MANY)))


def test_a_peer_with_too_many_connections_is_left_by_those_who_do_not_need_theirs(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_AFTER_S", math.inf)  # they are asked to
    config = config_of(MANY, topology="star", initial_state="own", **FEW)
    with members(config, range(MANY)) as nodes:
        hub, *others = nodes
        gossip(nodes, 5)
        eventually(lambda: sum(is_linked(member, hub.name) for member in others) <= FEWEST)
        gossip(nodes, 5)  # and they come back when there is something to ask
        assert all(member.node.rounds.merges > 0 for member in nodes)


def is_linked(member, peer):
    return member.node.links[peer] is not LinkState.IDLE


def test_peers_are_all_connected_to_before_anything_is_asked_unless_they_are_too_many():
    with members(config_of(MANY, transport="tcp"), range(MANY)) as nodes:
        for member in nodes:
            eventually(lambda member=member: all_up(member))


def all_up(member):
    return all(state is LinkState.UP for state in member.node.links.values())


@pytest.mark.parametrize("most", [MANY, FEWEST])
def test_collectives_run_however_many_connections_there_may_be(most):
    config = config_of(MANY, transport="tcp", connections=most)
    with ExitStack() as stack:
        nodes = made(stack, config, MANY)
        reduced = [None] * MANY

        def reduce(index):
            reduced[index] = nodes[index].all_reduce(np.full(4, float(index)))

        at_once([lambda index=index: reduce(index) for index in range(MANY)])
        for values, _ in reduced:
            np.testing.assert_allclose(values, np.full(4, sum(range(MANY))))


def test_many_members_agree_on_who_is_there_and_one_that_leaves_is_missed_by_nobody(caplog):
    with cluster() as nodes, caplog.at_level(logging.WARNING, "dpwa"):
        nodes.add("a")
        for index in range(MANY):
            nodes.add(f"n{index}", "a")
        nodes.agree(30.0)
        assert nodes.nodes["n0"].wait_for_peers(MANY, 5.0)
        nodes.close("n3")
        nodes.agree(30.0)
        assert not [r for r in caplog.records if r.name == "dpwa.members"]


def test_with_collectives_among_more_than_there_may_be_connections_it_says_so(caplog):
    config = config_of(MANY, transport="tcp", connections=FEWEST)
    with members(config, [1.0]) as [member]:
        member.node.tx.connect(needs_all=True)
        eventually(lambda: "Raise `connections`" in caplog.text)


def test_the_longest_silent_client_is_asked_to_go():
    clients = Clients(2)
    assert [clients.note_sender(sender) for sender in (b"a", b"b", b"a", b"c", b"a", b"d")] == [
        *[None] * 3,
        b"b",
        None,
        b"c",
    ]


SCARCE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
from dpwa.connection import DpwaConnection
from dpwa.node.fetching.connections import affordable
print(affordable(64, "w1"), affordable(8, "w1"))
few = [open("/dev/null") for _ in range(80)]
print(affordable(64, "w1"))
"""


def test_with_too_few_descriptors_a_node_says_how_many_it_needs_and_has_fewer_connections():
    said = subprocess.run(
        [sys.executable, "-c", SCARCE], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split()[:2] == ["10", "8"]
    assert 4 <= int(said.stdout.split()[2]) <= 6  # what is open counts
    assert said.stderr.count("needs 484 file descriptors, but this process may open 160") == 1
    assert affordable(4, "w1") == 4


FEW_LEFT = """
import os, resource, sys
import dpwa.connection
from dpwa.errors import UserError
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
config = {"nodes": [{"name": name, "port": port} for name, port in zip(("w1", "w2"), PORTS)]}
for left in (3, 4, 5, 6, 8, 14, 20):
    child = os.fork()
    if child:
        print(left, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    opened = [os.dup(1) for _ in range(128 - len(os.listdir("/dev/fd")) + 1 - left)]
    try:
        dpwa.connection.DpwaConnection("w1", config)
    except UserError as error:
        os.write(2, f"{error.text}\\n".encode())
    os._exit(0)
"""


def test_with_few_descriptors_left_a_node_says_so_instead_of_ending_the_process():
    code = FEW_LEFT.replace("PORTS", str(free_ports(2)))
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert [line.split()[1] for line in said.stdout.splitlines()] == ["0"] * 7
    assert said.stderr.count("too few file descriptors are left in this process: ") == 7


@contextmanager
def descriptors_left(count):
    """Let this process open only so many more files and sockets."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/dev/fd").iterdir()}
    highest = max(taken) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count, limits[1]))
    gaps = [os.dup(0) for _ in range(highest - len(taken) + 1)]  # those below are free
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in gaps:
            os.close(descriptor)


def test_without_descriptors_a_node_says_so_and_does_not_accuse_its_peers(caplog, monkeypatch):
    monkeypatch.setattr("dpwa.node.serving.rx_thread.IDLE_S", 0.05)
    with Node("w1", load_config(config_of(2))) as node:

        def problem(name):
            return next(p["problem"] for p in node.report()["peers"] if p["name"] == name)

        eventually(lambda: "nothing answers" in problem("w2"))
        with descriptors_left(0):
            eventually(lambda: "no file descriptors left" in problem("w2"))
            eventually(lambda: "no peer can connect" in caplog.text)
        with descriptors_left(8):
            node.add_peer("w3", "127.0.0.1", free_ports(1)[0])
            eventually(lambda: "too few file descriptors" in problem("w3"))
            for _ in range(3):
                node.tx.send_message("w3", AskStatus(request=1))
            eventually(lambda: "nothing answers" in problem("w2"))
        assert caplog.text.count("cannot connect to w3") == 1
        node.tx.send_message("w3", AskStatus(request=1))
        eventually(lambda: "nothing answers" in problem("w3"))


def test_messages_that_can_wait_open_no_more_connections_than_there_may_be():
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(12)]
        names = {f"s{index}": peer.getsockname()[1] for index, peer in enumerate(silent)}
        nodes = [{"name": "w1", "host": "127.0.0.1", "port": free_ports(1)[0]}]
        nodes += [{"name": name, "host": "127.0.0.1", "port": port} for name, port in names.items()]
        config = load_config({"nodes": nodes, "transport": "tcp", **FEW})
        node = stack.enter_context(Node("w1", config))
        for name in names:  # each is on its way for as long as nobody shakes hands
            node.tx.send_message(name, AskStatus(request=1), must=False)
        eventually(lambda: LinkState.CONNECTING in node.links.values())
        done = threading.Event()
        node.tx.call_soon(done.set)
        assert done.wait(HANGS_AFTER_S)
        assert sum(state is not LinkState.IDLE for state in node.links.values()) <= FEWEST


def test_a_training_ends_together_though_each_has_few_connections():
    count = FEWEST + 2
    config = config_of(count, initial_state="own", **FEW)
    with members(config, range(count)) as nodes:
        gossip(nodes, 10)
        reports = [None] * count

        def end(index):
            reports[index] = nodes[index].adapter.finish(seconds=4.0, timeout_s=10.0)

        at_once([lambda index=index: end(index) for index in range(count)])
        ends = np.array([float(member.x[0]) for member in nodes])
        assert np.ptp(ends) < 0.05 * count, reports
        assert all(report.took_part for report in reports)


@pytest.mark.parametrize(
    "algorithm", ["symmetric", pytest.param("push_sum", marks=pytest.mark.slow)]
)
def test_exchanges_go_on_though_half_of_many_names_are_not_there(algorithm, monkeypatch):
    monkeypatch.setattr(beginners, "LEAD", math.inf)
    config = config_of(2 * MANY, algorithm=algorithm, initial_state="own", **FEW)
    with members(config, range(MANY)) as nodes:
        gossip(nodes, 15)
        settle(nodes)
        assert float(sum_of(nodes)[0]) == pytest.approx(sum(range(MANY)))
        assert np.ptp([float(member.x[0]) for member in nodes]) < MANY - 1


def test_a_newcomer_takes_over_the_state_of_one_of_many():
    count = FEWEST + 2
    config = config_of(count, **FEW)
    with members(config, range(count - 1)) as nodes, ExitStack() as stack:
        gossip(nodes, 20)

        def join():
            late = Member(f"w{count}", {**config, "initial_state": "peers"}, -100.0)
            stack.callback(late.adapter.close)
            return late

        with ThreadPoolExecutor(1) as threads:
            joined = threads.submit(join)
            while not joined.done():
                gossip(nodes, 2)  # a donor copies its state between two steps
                time.sleep(0.02)
            assert joined.result().x.min() >= 0.0


def test_when_peers_are_no_longer_many_all_are_connected_again():
    config = config_of(MANY, transport="tcp", connections=FEWEST)
    with members(config, range(FEWEST)) as [one, *others]:
        for index in range(FEWEST, MANY):
            one.node.remove_peer(f"w{index + 1}")
        eventually(lambda: all_up(one))
        assert len(one.node.links) == len(others)


def test_a_connection_that_could_not_be_made_is_made_as_soon_as_it_can(monkeypatch):
    is_short = True

    def link(*arguments):
        if is_short:
            raise zmq.ZMQError(errno.EMFILE)
        return PeerLink(*arguments)

    monkeypatch.setattr("dpwa.node.fetching.connections.PeerLink", link)
    monkeypatch.setattr("dpwa.node.peers.STARTUP_GRACE_S", 0.0)
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:

        def is_missing():
            return not has_merged(one, two) and status_of(one, "w2")["outcomes"]["unreachable"] > 0

        assert eventually(is_missing)
        is_short = False
        assert eventually(lambda: has_merged(one, two))
