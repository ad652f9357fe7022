"""A forked child has the memory of its parent's nodes, but no threads: it must not use them."""

import json

import pytest
from support.processes import ended, start

HARMLESS = {"close", "repr"}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    program = start("fork_users.py", tmp_path_factory.mktemp("checkpoints"))
    with ended(program):
        out, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    return {line[0]: line[1:] for line in map(json.loads, out.splitlines())}


@pytest.mark.parametrize(
    "way", ["sys.exit", "os._exit", "multiprocessing", "collected", "inside with"]
)
def test_every_call_of_a_child_is_refused_and_its_end_takes_nothing_down(told, way):
    raised, status, is_merged, slots = told[way]
    assert raised == {name: "" if name in HARMLESS else "ForkedError" for name in raised}
    assert len(raised) > 20
    assert status == 0
    assert is_merged
    assert slots > 0


def test_workers_of_a_data_loader_may_hold_an_adapter(told):
    assert told["loader"] == [[0, 1, 2, 3], 0, True, [1, 1, 1, 1]]


def test_the_port_is_free_though_children_of_the_node_live_on(told):
    assert "'w1' at tcp://" in told["again"][0]
