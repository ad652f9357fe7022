"""Following a run from outside: real nodes, real sockets, and peers that are none."""

import json
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from support.imposters import imposter
from support.keys import key_folders
from support.nodes import at_once, config_of, eventually
from support.ports import free_ports
from support.processes import ended, start
from support.times import HANGS_AFTER_S, at_most
from support.told_reports import told_answer

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.config.endpoints import seed_of
from dpwa.node.query import asking_keyring, places_to_ask
from dpwa.observe.rows import rows_of
from dpwa.observe.watch import Watch
from dpwa.wire.messages import encode, pack
from dpwa.wire.watching import HistoryMessage


@contextmanager
def nodes(config, *names):
    """Nodes in this process that gossip once a hundredth of a second."""
    with ExitStack() as stack:
        running = [stack.enter_context(DpwaConnection(name, config)) for name in names]
        stop = threading.Event()

        def train():
            while not stop.wait(0.01):
                for each in running:
                    each.update_send(np.ones(4), 0.5)
                    each.update_wait(0.5)

        thread = threading.Thread(target=train)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        yield running


def only(config, *names):
    """The addresses of these nodes alone, to begin with."""
    seeds = {seed.name: seed for seed in places_to_ask(load_config(config))}
    return [seed_of(seeds[name].endpoint) for name in names]


def watching(config, *names, interval_s=0.2, **options):
    return Watch(only(config, *names), interval_s=interval_s, **options)


def seen(watch):
    """The nodes of a view by name."""
    return {node.name: node for node in watch.view().nodes}


def events(watch, kind):
    return [event for event in watch.view().events if event.kind == kind]


def own_events(watch, kind):
    """What the watch itself has noticed of the node that it reads through."""
    return [event for event in events(watch, kind) if not event.node]


def is_told(watch, *names):
    """Whether all of these answer, and nobody else is followed."""
    found = seen(watch)
    return set(found) == set(names) and all(n.answer and not n.silent_s for n in found.values())


def is_merged_by_w1(watch, name):
    """Whether w1 tells that it has merged a node."""
    return any(peer.name == name and peer.merges for peer in seen(watch)["w1"].peers)


def process_of(config, name):
    """Start a node in a process of its own, and wait until it trains."""
    process = start("gossip.py", name, json.dumps(config))
    assert process.stdout.readline()
    return process


def test_one_seed_finds_all_and_each_tells_its_figures_and_events():
    config = config_of(3, timeout_ms=300)
    with nodes(config, "w1", "w2", "w3"), watching(config, "w2") as watch:
        eventually(lambda: is_told(watch, "w1", "w2", "w3"), 5.0)
        eventually(lambda: {n.name for n in watch.view().nodes if len(n.history.since())} ==
                   {"w1", "w2", "w3"})  # fmt: skip
        view = watch.wait_for_answers(5.0)
        assert view.through == "w2"
        eventually(lambda: events(watch, "joined"))
        assert all(row.state == "live" for row in rows_of(watch.view()))


def test_of_a_node_that_cannot_be_reached_another_one_tells():
    config = config_of(3, timeout_ms=300)
    with nodes(config, "w1", "w2"):
        lost = process_of(config, "w3")
        with ended(lost):
            with watching(config, "w1") as watch:
                eventually(lambda: is_told(watch, "w1", "w2", "w3"))
                eventually(lambda: is_merged_by_w1(watch, "w3"))
            lost.kill()
            lost.wait(10)
        with watching(config, "w1") as watch:
            view = watch.wait_for_answers(HANGS_AFTER_S)
            rows = {row.name: row for row in rows_of(view)}
            assert rows["w3"].state == "silent"
            assert rows["w3"].through == view.through == "w1"
            assert rows["w3"].clock is not None
            (verdict,) = rows["w3"].verdicts
            assert verdict.kind in ("gone", "no answer")  # it was heard of a moment ago
            assert verdict.text.count(f"nothing answers at {seen(watch)['w3'].endpoint}") == 1
            assert seen(watch)["w3"].answer is None


@pytest.mark.slow
def test_when_the_node_that_tells_of_others_is_killed_another_one_does_within_five_seconds():
    config = config_of(3, timeout_ms=300)
    killed = process_of(config, "w1")
    with ended(killed), nodes(config, "w2", "w3"), watching(config, "w1") as watch:
        eventually(lambda: is_told(watch, "w1", "w2", "w3"))
        assert watch.view().through == "w1"
        killed.kill()
        began = time.monotonic()
        eventually(lambda: watch.view().through in ("w2", "w3"))
        assert time.monotonic() - began < at_most(5.0)
        moved = own_events(watch, "silent")[0]
        assert (moved.node, moved.about) == ("", "w1")
        assert moved.text in ("w2 reports on the others now", "w3 reports on the others now")
        eventually(lambda: [row.name for row in rows_of(watch.view()) if row.verdicts] == ["w1"])


@pytest.mark.slow
def test_a_node_that_was_restarted_is_followed_as_the_same_node():
    config = config_of(2, timeout_ms=300)
    first = process_of(config, "w1")
    with ended(first), nodes(config, "w2"), watching(config, "w2") as watch:
        eventually(lambda: is_told(watch, "w1", "w2"))
        before = seen(watch)["w1"].answer
        first.kill()
        first.wait(10)
        second = process_of(config, "w1")
        with ended(second):
            eventually(lambda: events(watch, "restarted"), 15.0)
            (event,) = events(watch, "restarted")
            assert (event.about, event.text) == ("w1", "a new process of this node answers")
            after = eventually(lambda: is_told(watch, "w1", "w2") and seen(watch)["w1"].answer)
            assert (before.pid, after.pid) == (first.pid, second.pid)
            count = len(seen(watch)["w1"].history.since())
            eventually(lambda: len(seen(watch)["w1"].history.since()) > count)
            eventually(lambda: all(row.state == "live" for row in rows_of(watch.view())))


def test_a_run_that_ends_well_has_ended_and_nothing_is_the_matter():
    config = config_of(3, timeout_ms=300)
    connections = [DpwaConnection(f"w{n}", config) for n in (1, 2, 3)]

    for connection in connections:
        connection.update_send(np.ones(4), 0.5)

    def end(connection):
        with connection:
            connection.finish(np.ones(4))

    with watching(config, "w1", interval_s=1.0) as watch:
        eventually(lambda: [row.loss for row in rows_of(watch.view())] == [0.5] * 3)
        at_once([lambda each=each: end(each) for each in connections])
        eventually(lambda: watch.view().has_ended)
        rows = rows_of(watch.view())
        assert [(row.state, row.verdicts, row.problem) for row in rows] == [
            ("finished", (), "")
        ] * 3
        assert [row.loss for row in rows] == [0.5] * 3
        assert own_events(watch, "finished")[-1].text == "the run has ended"
        told = [(e.node, e.number) for e in watch.view().events if e.node]
        assert len(told) == len(set(told))  # none of them twice


def test_a_node_that_ends_says_how_to_whoever_watches_it(monkeypatch):
    config = config_of(3, timeout_ms=300)
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(DpwaConnection(f"w{n}", config)) for n in (1, 2, 3))
        watch = stack.enter_context(watching(config, "w1", interval_s=1.0))
        eventually(lambda: is_told(watch, "w1", "w2", "w3"))
        with suppress(ValueError), one:
            raise ValueError
        eventually(lambda: watch.view().through == "w2")
        assert own_events(watch, "left")[-1].text == "w2 reports on the others now"
        two.node.close()  # as at the end of a program that has closed nothing
        monkeypatch.setattr(sys, "last_type", KeyError, raising=False)  # nobody has caught it
        three.node.close()
        eventually(lambda: watch.view().has_ended)
        rows = {row.name: [v.text for v in row.verdicts] for row in rows_of(watch.view())}
        assert rows == {
            "w1": ["has left: broken off by ValueError"],
            "w2": [],
            "w3": ["has left: broken off by KeyError"],
        }
        assert [row.state for row in rows_of(watch.view())] == ["left", "finished", "left"]


def test_a_node_that_is_killed_in_the_end_is_gone():
    config = config_of(2, timeout_ms=300)
    killed = process_of(config, "w1")
    with ended(killed), watching(config, "w1") as watch:
        with nodes(config, "w2"):
            eventually(lambda: is_told(watch, "w1", "w2"))
        killed.kill()
        eventually(lambda: not watch.view().through)
        assert not watch.view().has_ended
        assert own_events(watch, "silent")[-1].text == "no other node answers"
        rows = {row.name: row for row in rows_of(watch.view())}
        assert (rows["w1"].state, rows["w2"].state) == ("silent", "left")
        assert [verdict.kind for verdict in rows["w1"].verdicts] == ["gone"]


def test_a_seed_at_which_nobody_listens():
    (port,) = free_ports(1)
    with Watch([seed_of(f"tcp://127.0.0.1:{port}")]) as watch:
        view = watch.wait_for_answers(HANGS_AFTER_S)
    (node,) = view.nodes
    assert node.name == node.endpoint == f"tcp://127.0.0.1:{port}"
    assert node.problem == f"nothing answers at tcp://127.0.0.1:{port}"
    assert (view.through, view.events, node.answer) == ("", (), None)
    (row,) = rows_of(view)
    assert (row.state, row.verdicts) == ("unknown", ())


@contextmanager
def http_server():
    """What answers HTTP to anybody who says anything, or nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_seed_that_answers_http_is_no_node():
    with http_server() as port, Watch([seed_of(f"tcp://127.0.0.1:{port}")]) as watch:
        node = eventually(lambda: [n for n in watch.view().nodes if n.problem])[0]
        assert "a program that is not a dpwa node" in node.problem or "broke off" in node.problem
        assert watch.view().through == ""


@pytest.mark.parametrize(
    "payload",
    [
        pack({"schema": 1, "name": "w9"}),
        pack([1, 2]),
        b"\xc1\xff",
        b"",
        pack(told_answer("w2", figures=["steps"], samples=b"12345")),
    ],
)
def test_an_answer_that_is_malformed_is_a_problem_of_that_node_only(payload):
    config = config_of(2, timeout_ms=300)
    bad = [encode(HistoryMessage(request=1)), payload]
    with (
        nodes(config, "w1"),
        imposter(config["nodes"][1]["port"], lambda frames: [bad]),
        watching(config, "w1", "w2") as watch,
    ):
        found = eventually(lambda: [n for n in watch.view().nodes if n.problem])
        (sick,) = found
        assert sick.endpoint.endswith(str(config["nodes"][1]["port"]))
        assert sick.answer is None
        eventually(lambda: seen(watch).get("w1") and seen(watch)["w1"].answer)
        eventually(lambda: len(seen(watch)["w1"].history.since()))
        assert watch.view().through == "w1"
        assert seen(watch)["w1"].problem == ""


def test_with_keys_who_has_one_is_answered_and_who_has_none_is_told_why(tmp_path):
    folders = key_folders(tmp_path, "w1", "w2", "w8", "w9")
    folders["w1"].remove("w8")
    config = {**config_of(2, timeout_ms=300), "security": "curve"}

    def of(name):
        return {**config, "keys": str(folders[name].path)}

    seeds = places_to_ask(load_config(config | {"keys": str(folders["w9"].path)}))[:1]
    known, unknown = (asking_keyring(load_config(of(name)), None) for name in ("w9", "w8"))
    with DpwaConnection("w1", of("w1")), DpwaConnection("w2", of("w2")):
        with Watch(seeds, known, 0.2) as watch:
            eventually(lambda: is_told(watch, "w1", "w2"))
        with Watch(seeds, unknown, 0.2) as watch:
            node = eventually(lambda: [n for n in watch.view().nodes if n.problem])[0]
            assert "refuses this node" in node.problem
        with Watch(seeds, None, 0.2) as watch:
            node = eventually(lambda: [n for n in watch.view().nodes if n.problem])[0]
            assert "curve`" in node.problem


def test_two_nodes_that_say_the_same_name_are_told_apart():
    config = config_of(2, timeout_ms=300)
    other = {**config, "nodes": [{**config["nodes"][0], "port": config["nodes"][1]["port"]}]}
    first = load_config(config).nodes[0].connect_endpoint
    second = f"tcp://127.0.0.1:{config['nodes'][1]['port']}"
    alone = {**config, "nodes": config["nodes"][:1]}
    with (
        nodes(alone, "w1"),
        ended(process_of(other, "w1")),
        Watch([seed_of(first), seed_of(second)], interval_s=0.2) as watch,
    ):
        sick = eventually(lambda: [n for n in watch.view().nodes if n.problem])[0]
        assert sick.problem.startswith("the node at tcp://")
        assert sick.problem.endswith(" also has the name w1, but names must be unique")
        assert [n.name for n in watch.view().nodes if n.answer] == ["w1"]
