"""What `dpwa status` tells of a module in training."""

import os

import pytest
import torch
from support.members import in_lockstep, members
from support.nodes import config_of, eventually

from dpwa import DpwaPyTorchAdapter
from dpwa.node.query import StatusAnswer, diagnose


def test_the_distance_to_the_peer_that_was_merged_last_is_told():
    with members(config_of(2, constant={"value": 0.0}), [1.0, 3.0], size=4) as nodes:

        def distances():
            in_lockstep(nodes, 2)
            told = [m.node.report()["training"]["consensus_distance"] for m in nodes]
            return told if all(told) else None

        expected = float(torch.linalg.vector_norm(torch.full((4,), 2.0)))
        assert eventually(distances) == [expected, expected]


CORES = os.cpu_count() or 1
HERE = ("localhost", "127.0.0.1")


@pytest.fixture
def computing_with():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.skipif(CORES == 1, reason="nodes cannot have more threads than one")
@pytest.mark.parametrize(
    ("hosts", "chosen", "threads", "is_told"),
    [
        (HERE, "", CORES, True),
        (HERE, "", CORES // 2, False),
        (HERE, "", CORES + 1, False),  # which nobody but the user sets
        (HERE, str(CORES), CORES, False),
        (("localhost", "10.0.0.2"), "", CORES, False),
    ],
)
def test_nodes_that_take_more_threads_than_their_host_has_cores_are_told(
    hosts, chosen, threads, is_told, computing_with, monkeypatch, caplog
):
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    computing_with(threads)
    config = config_of(2)
    for node, host in zip(config["nodes"], hosts, strict=True):
        node["host"] = host
    with DpwaPyTorchAdapter(torch.nn.Linear(2, 2), "w1", config) as gossip:
        report = gossip.connection.node.condition()
    found = [each.text for each in diagnose({"w1": StatusAnswer(report)})]
    told = (
        f"w1: each of the 2 nodes on this host computes with {CORES} threads, but the host has "
        f"{CORES} cores, so the nodes slow each other down. Set OMP_NUM_THREADS={CORES // 2}"
    )
    assert found == ([told] if is_told else [])
    assert [text for text in caplog.messages if "OMP_NUM_THREADS" in text] == (
        [f"{told} [DPWA-W104]"] if is_told else []
    )
