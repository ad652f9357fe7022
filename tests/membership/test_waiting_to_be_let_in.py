"""A node that is told of addresses trains when one of them has let it in, and never alone."""

import json
import logging
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest
from support.keys import key_folders
from support.nodes import eventually
from support.open_cluster import cluster
from support.ports import free_ports
from support.processes import ended, start

from dpwa.config import load_config
from dpwa.connection import DpwaConnection
from dpwa.errors import AddressError, DpwaError, JoinTimeoutError
from dpwa.membership.joining import JoinAnswer, JoinOutcome, Wait
from dpwa.membership.members import Members
from dpwa.node.node import Node
from dpwa.runtime import SYSTEM


def address():
    (port,) = free_ports(1)
    return f"tcp://127.0.0.1:{port}"


@contextmanager
def process(name, **config):
    child = start("gossip.py", name, json.dumps({"log_level": "warning", **config}))
    with ended(child):
        yield child


class Newcomer(threading.Thread):
    """A node that is made on a thread of its own, as that may take a while."""

    def __init__(self, nodes, name, *at, **settings):
        super().__init__(daemon=True)
        self._make = lambda: nodes.add(name, *at, **settings)
        self.error = None
        self.start()

    def run(self):
        try:
            self._make()
        except JoinTimeoutError as error:
            self.error = error

    def wait(self):
        self.join(60.0)
        assert not self.is_alive()


def waits(caplog, name):
    return any(text.startswith(f"{name}: not admitted yet") for text in list(caplog.messages))


# Nobody is there


def test_a_newcomer_whose_address_is_dead_waits_and_joins_when_it_is_back(caplog):
    place = address()
    with cluster() as nodes:
        newcomer = Newcomer(nodes, "b", place)
        eventually(lambda: waits(caplog, "b"), 30.0)
        newcomer.join(1.0)
        assert newcomer.is_alive()
        assert not nodes.nodes
        nodes.add("a", listen=place)
        newcomer.wait()
        assert nodes.nodes["b"].peers == ("a",)
        nodes.agree(30.0)
    (line,) = [text for text in caplog.messages if "not admitted yet" in text]
    assert re.fullmatch(
        rf"b: not admitted yet, asks for \d\d s more \(join_timeout_s\): {place}: nothing answers "
        r"\[DPWA-W041\]",
        line,
    )


GIVES_UP = """
import json, sys
from dpwa.connection import DpwaConnection
with DpwaConnection(sys.argv[1], json.loads(sys.argv[2])):
    print("trains alone")
print("goes on")
"""


def test_a_program_that_finds_nobody_ends_with_code_3_and_one_message():
    places = [address(), address()]
    config = json.dumps({"log_level": "warning", "join": places, "join_timeout_s": 0.5})
    command = [sys.executable, "-c", GIVES_UP, "b", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    out, err = done.stdout, done.stderr
    assert done.returncode == 3
    assert out == ""
    warning, error = err.splitlines()
    assert "WARNING dpwa: b: not admitted yet" in warning
    assert (
        "ERROR dpwa: b: gives up, because no node has admitted it within 0.5 s (join_timeout_s)"
        in error
    )
    assert all(f"{place}: nothing answers" in error for place in places)
    assert "Start a node at one of these addresses" in error


def test_who_catches_it_goes_on_and_nothing_but_the_message_is_seen(caplog, capfd):
    with pytest.raises(JoinTimeoutError) as caught:
        DpwaConnection("b", {"join": [address()], "join_timeout_s": 0.3})
    assert isinstance(caught.value, DpwaError)
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 3
    assert str(caught.value) in caplog.messages
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
    assert "Traceback" not in capfd.readouterr().err
    assert not [t for t in threading.enumerate() if t.name.startswith("dpwa")]


def test_ctrl_c_ends_the_wait_at_once():
    with process("b", join=[address()], join_timeout_s=3600) as child:
        assert "not admitted yet" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30.0)
    assert child.returncode == -signal.SIGINT
    assert out == ""
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert "did not stop" not in err


# Who may begin


def test_nodes_that_only_know_each_other_are_told_that_one_has_to_begin():
    here, there = address(), address()
    with cluster(join_timeout_s=4.0) as nodes:
        both = [
            Newcomer(nodes, "a", there, listen=here),
            Newcomer(nodes, "b", here, listen=there),
        ]
        for one in both:
            one.wait()
        told = [str(one.error) for one in both]
        assert not nodes.nodes
    reasons = [
        f"{there}: b is itself waiting to be admitted",
        f"{here}: a is itself waiting to be admitted",
    ]
    assert any(reason in text for reason in reasons for text in told)
    hint = "If all nodes wait for each other, set `join: []` or `alone: true` for one of them"
    assert any(hint in text for text in told)


def test_who_waits_itself_lets_nobody_in_until_it_is_in(caplog):
    first, second = address(), address()
    with cluster() as nodes:
        b = Newcomer(nodes, "b", first, listen=second)
        c = Newcomer(nodes, "c", second)
        eventually(lambda: waits(caplog, "b") and waits(caplog, "c"), 30.0)
        assert not nodes.nodes
        nodes.add("a", listen=first)
        b.wait()
        c.wait()
        nodes.agree(30.0)


def test_of_one_file_the_listed_begin_and_others_wait_for_them(caplog):
    (port,) = free_ports(1)
    with cluster(nodes=[{"name": "a", "host": "127.0.0.1", "port": port}]) as nodes:
        c = Newcomer(nodes, "c")
        eventually(lambda: waits(caplog, "c"), 30.0)
        assert not nodes.nodes
        nodes.add("a")
        c.wait()
        nodes.agree(30.0)


def test_listed_nodes_of_one_file_begin_one_after_the_other():
    ports = zip("ab", free_ports(2), strict=True)
    listed = [{"name": name, "host": "127.0.0.1", "port": port} for name, port in ports]
    with cluster(nodes=listed) as nodes:
        nodes.add("a")
        nodes.add("b")
        nodes.agree(30.0)


def test_listed_nodes_wait_for_addresses_that_they_are_told_of(caplog):
    place, (port,) = address(), free_ports(1)
    with cluster(nodes=[{"name": "a", "host": "127.0.0.1", "port": port}]) as nodes:
        a = Newcomer(nodes, "a", place)
        eventually(lambda: waits(caplog, "a"), 30.0)
        assert not nodes.nodes
        nodes.add("x", listen=place, alone=True)
        a.wait()
        nodes.agree(30.0)


def test_a_node_that_knows_its_own_address_only_begins():
    (port,) = free_ports(1)
    with cluster() as nodes:
        place = f"tcp://localhost:{port}"
        nodes.add("a", place, listen=place)
        nodes.add("b", place)
        nodes.agree(30.0)


def test_a_restarted_node_is_let_in_by_those_who_remember_it_though_its_address_is_dead():
    place = address()
    with cluster() as nodes:
        a = nodes.add("a")
        with process("b", join=[a.node.endpoint], listen=place) as child:
            eventually(lambda: a.peers == ("b",), 60.0)
            child.kill()
        eventually(lambda: not a.peers, 60.0)
        nodes.add("b", address(), listen=place)
        nodes.agree(60.0)


# What is remembered


def remembered(folder, name):
    return {n for n, _ in json.loads((folder / f"{name}.members.json").read_text())["members"]}


def test_a_restarted_node_asks_the_members_that_it_remembers(tmp_path):
    with cluster() as nodes:
        a = nodes.add("a")
        nodes.add("c", "a")
        nodes.add("b", "a", state_dir=str(tmp_path))
        nodes.agree(30.0)
        place = a.node.endpoint
        nodes.close("b")
        assert remembered(tmp_path, "b") == {"a", "c"}
        nodes.close("a")
        nodes.add("b", place, state_dir=str(tmp_path))
        nodes.agree(30.0)


def test_a_restarted_first_node_finds_its_cluster_from_another_address(tmp_path):
    checkpoint = {"dir": str(tmp_path)}  # beside its checkpoints
    with cluster() as nodes:
        nodes.add("a", checkpoint=checkpoint)
        nodes.add("b", "a")
        nodes.agree(30.0)
        eventually(lambda: (tmp_path / "a.members.json").exists())
        nodes.close("a")
        a = nodes.add("a", checkpoint=checkpoint)
        assert a.peers == ("b",)
        nodes.agree(30.0)


def test_who_is_remembered_is_known_by_its_key(tmp_path):
    key_folders(tmp_path, "a", "b", "c")
    with cluster(security="curve") as nodes:

        def add(name, *at, **more):
            return nodes.add(name, *at, keys=str(tmp_path / name), **more)

        place = f"a@{add('a').node.endpoint}"
        add("c", place)
        add("b", place, state_dir=str(tmp_path))
        nodes.agree(30.0)
        nodes.close("b")
        nodes.close("a")
        add("b", place, state_dir=str(tmp_path))
        nodes.agree(30.0)


def test_a_first_node_that_remembers_nobody_alive_begins_anew(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("dpwa.membership.members.REMEMBERED_S", 0.5)
    file = tmp_path / "a.members.json"
    place = address()
    file.write_text(json.dumps({"format": 1, "node": "a", "members": [["b", place]]}))
    with cluster() as nodes:
        nodes.add("a", state_dir=str(tmp_path))
        assert f"asks the members that it remembers for 0 s more: {place}" in caplog.text
        assert remembered(tmp_path, "a") == {"b"}
        nodes.add("c", "a")
        nodes.agree(30.0)
        eventually(lambda: remembered(tmp_path, "a") == {"b", "c"})  # it may come back
        nodes.add("b", listen=place)  # as the member of another cluster
        nodes.agree(30.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"format": 1, "node": "b", "mem',
        "[]",
        "[" * 100_000,
        '{"format": 2, "node": "b", "members": []}',
        '{"format": 1, "node": "other", "members": []}',
        '{"format": 1, "node": "b", "members": [["a"]]}',
        '{"format": 1, "node": "b", "members": [["a", "http://h:1"]]}',
        '{"format": 1, "node": "b", "members": [[1, 2]]}',
        '{"format": 1, "node": "b", "members": 7}',
        b"\xff\xfe",
    ],
)
def test_a_file_that_makes_no_sense_is_told_once_and_replaced(text, tmp_path, caplog):
    file = tmp_path / "b.members.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a", state_dir=str(tmp_path))
        nodes.agree(30.0)
        nodes.close("b")
    (warning,) = [r.getMessage() for r in caplog.records if "remembers" in r.getMessage()]
    assert warning == (
        f"b: this node remembers no members after a restart, because file {file} is damaged, or "
        "belongs to a different node [DPWA-W043]"
    )
    assert remembered(tmp_path, "b") == {"a"}


def test_a_folder_that_cannot_be_written_to_is_told_once(tmp_path, caplog):
    folder = tmp_path / "file"
    folder.write_text("in the way")
    with cluster() as nodes:
        nodes.add("a", state_dir=str(folder))
        nodes.add("b", "a")
        nodes.add("c", "a")
        nodes.agree(30.0)
    assert len([text for text in caplog.messages if "remembers no members" in text]) == 1


# Names of hosts


def test_all_addresses_of_a_host_are_tried_and_a_failed_look_up_is_a_reason(caplog):
    tries = []

    def look_up(endpoint):
        tries.append(endpoint)
        if len(tries) < 3:
            raise AddressError("cluster.test has no address: not known")
        return address(), nodes.endpoint("a")

    with cluster() as nodes, ExitStack() as stack:
        nodes.add("a")
        config = {"join": ["tcp://cluster.test:7000"], "listen": "tcp://127.0.0.1:0", "seed": 1}
        node = stack.enter_context(Node("b", load_config(config)))
        stack.enter_context(Members(node, look_up=look_up))
        assert node.peers == ("a",) or eventually(lambda: node.peers == ("a",))
        assert set(tries) == {"tcp://cluster.test:7000"}
        assert "tcp://cluster.test:7000: cluster.test has no address: not known" in caplog.text


# What is said meanwhile


def test_a_waiting_node_says_so_at_once_when_all_tries_have_failed_and_then_every_10_s():
    wait = Wait("b", now=0.0, timeout_s=300.0, gives_up=True)
    problems = {f"tcp://h:{n}": f"nothing answers at tcp://h:{n}" for n in range(1, 11)}
    told = [n for n in range(400) if wait.line(n / 10, problems, has_tried=n >= 5)]
    assert told == [5, 105, 205, 305]
    line = wait.line(60.0, problems, has_tried=True)
    assert line.startswith("b: not admitted yet, asks for 240 s more (join_timeout_s): tcp://h:1: ")
    assert line.endswith("tcp://h:8: nothing answers; and 2 more [DPWA-W041]")
    assert not wait.is_over(299.9)
    assert wait.is_over(300.0)


def test_a_try_that_takes_long_does_not_keep_it_from_saying_so():
    wait = Wait("b", now=0.0, timeout_s=300.0, gives_up=True)
    assert [n for n in range(100) if wait.line(n / 10, {}, has_tried=False)] == [30]


def test_a_place_is_a_nodes_own_if_only_other_loopback_addresses_are_left():
    place = "tcp://localhost:1"
    outcome = JoinOutcome([place], SYSTEM)
    assert not outcome.is_own(place)
    outcome.located(place, ("tcp://127.0.0.1:1", "tcp://[::1]:1"))
    outcome.record_answer(
        "tcp://127.0.0.1:1", JoinAnswer("this node itself has this address", "self")
    )
    assert outcome.is_own(place)
    outcome.located(place, ("tcp://127.0.0.1:1", "tcp://10.0.0.1:1"))
    assert not outcome.is_own(place)


def test_nothing_is_kept_of_addresses_that_nobody_has_told_of():
    outcome = JoinOutcome(["tcp://h:1"], SYSTEM)
    outcome.record_answer("tcp://h:2", JoinAnswer("nothing answers"))
    assert list(outcome.answers) == ["tcp://h:1"]
    outcome.record_answer("tcp://h:1", JoinAnswer("nothing answers"))
    assert outcome.is_clear
