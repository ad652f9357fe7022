"""What people see of a run under `together`, from real processes to top, dashboard and report."""

import json
import signal
import threading
from collections import deque

import numpy as np
import pytest
from support.commands import run_dpwa
from support.nodes import config_of, eventually
from support.processes import ended, start

from dpwa.config.endpoints import Seed
from dpwa.observe.dashboard.server import Feed
from dpwa.observe.run_log_reader import read_run
from dpwa.observe.watch import Watch

STEPS = 100_000  # more than are taken: the nodes are stopped
MODEL_BYTES = 4 * (64 * 256 + 256 + 256 * 8 + 8)
BUCKETS = 4  # of the program's model
FORM_BYTES = 4 * 12  # that go along with the gradients of four parameters


@pytest.fixture(params=["auto", pytest.param("tcp", marks=pytest.mark.slow)])
def run(request, tmp_path):
    """Three nodes in sync: their processes, the place of the first, the folder of their logs."""
    logs, transport = tmp_path / "logs", request.param
    more = {"transport": transport, "run_log": str(logs), "log_level": "error"}
    config = config_of(3, algorithm="together", **more)
    nodes = [start("together.py", n["name"], json.dumps(config), STEPS) for n in config["nodes"]]
    with ended(*nodes):
        for node in nodes:  # a pipe that is full would hold a node up
            threading.Thread(target=deque, args=(node.stdout, 0), daemon=True).start()
        yield nodes, f"127.0.0.1:{config['nodes'][0]['port']}", logs, transport


def top(place):
    printed = run_dpwa("top", "--at", place, "--once", "--json").stdout
    return {node["name"]: node for node in json.loads(printed)["nodes"]}


def test_who_is_in_sync_and_how_many_bytes_that_takes(run):
    nodes, place, logs, transport = run
    with Watch([Seed(f"tcp://{place}")]) as watch:
        feed = Feed(watch.view)

        def told():
            return {node["name"]: node for node in feed.update()["nodes"]}

        def are_in_sync(*names):
            found = told()
            return all(n in found and found[n]["in_sync"] == names for n in names)

        eventually(lambda: are_in_sync("w1", "w2", "w3"))
        # A rate needs two samples of a node, and the nodes begin at different times.
        eventually(lambda: all(node["rounds_per_s"] for node in feed.update()["nodes"]))
        eventually(lambda: "merges" in feed.update()["missing"])  # after a few seconds
        state = feed.update()
        assert state["groups"] == [("w1", "w2", "w3")]
        assert state["title"] == "together"
        why = "nodes in sync merge no snapshots"
        assert state["missing"].items() >= {("merges", why), ("staleness", why)}
        assert [node["consensus_distance"] for node in state["nodes"]] == [0.0] * 3
        page = run_dpwa("top", "--at", place, "--once", environment={"COLUMNS": "120"}).stdout
        assert "in sync: w1, w2, w3" in page
        assert "rounds/s" in page.splitlines()[1]
        nodes[2].send_signal(signal.SIGKILL)
        eventually(lambda: are_in_sync("w1", "w2"))
        row = top(place)["w1"]
        assert (row["in_sync"], row["out_of_sync_s"], row["averages"]) == (["w1", "w2"], None, True)
    for node in nodes[:2]:
        node.send_signal(signal.SIGINT)
        node.wait()
    of_nodes = read_run(logs).nodes
    first = of_nodes["w1"]
    assert first.exchanged["w2"].rounds > first.exchanged["w3"].rounds > 0
    assert first.event_counts["in_sync"] == 1
    assert np.nanmax(first.figure("in_sync")) == 3.0
    assert np.nanmax(first.figure("consensus_distance")) == 0.0
    taken = sum(node.total("merged_bytes") for node in of_nodes.values())
    rounds = sum(node.total("rounds") for node in of_nodes.values())
    # Of n nodes, each takes in 2 (n-1)/n of a model in a step: 4/3 of it with three, 1 with two.
    # The beginning, with the state of the optimizer, and a step that a death has broken off come on
    # top.
    steps = rounds / BUCKETS
    assert steps * MODEL_BYTES < taken < 1.6 * steps * (MODEL_BYTES + FORM_BYTES) + 30 * MODEL_BYTES
    mapped = sum(node.total("mapped_bytes") for node in of_nodes.values())
    received = sum(node.total("received_bytes") for node in of_nodes.values())
    assert (mapped == taken) if transport == "auto" else (mapped == 0)
    assert (received < 0.01 * taken) if transport == "auto" else (received >= taken)
