"""A node that starts late, as a process of its own, among nodes that train already."""

import json
from contextlib import ExitStack

import pytest
from support.members import Member
from support.nodes import config_of, eventually
from support.processes import ended, start
from support.state_donors import training

LEAD = 1000


def trained(name, config, stack):
    member = Member(name, config, 1.0, size=8, net=vector())
    stack.callback(member.adapter.close)
    return member


def vector():
    import torch

    net = torch.nn.Linear(8, 1, bias=False)
    torch.nn.init.constant_(net.weight, 1.0)
    return net


@pytest.mark.parametrize("initial_state", [None, pytest.param("own", marks=pytest.mark.slow)])
def test_a_process_that_comes_a_thousand_updates_late_throws_nobody_back(initial_state, tmp_path):
    config = config_of(3)
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({**config, "initial_state": initial_state}))
    with ExitStack() as stack:
        first, second = (trained(name, config, stack) for name in ("w1", "w2"))
        for member in (first, second):
            member.node.rounds.resume(float(LEAD), LEAD)
        stack.enter_context(training(first.adapter, second.adapter))
        late = start("late_member.py", "w3", path, 99.0)
        stack.enter_context(ended(late))
        output, errors = late.communicate(timeout=120)
        assert late.returncode == 0, errors
        said = json.loads(output)
        if initial_state is None:
            assert said["clock"] >= LEAD
            assert said["updates"] >= LEAD
            assert said["weight"] == 1.0
        else:
            assert said["clock"] == 0.0
            assert said["weight"] == 99.0
        assert said["then"] >= LEAD
        assert said["weight_then"] == 1.0
        eventually(lambda: first.node.report()["merges"] > 0, 60)
    for member in (first, second):
        assert (member.x == 1.0).all()
