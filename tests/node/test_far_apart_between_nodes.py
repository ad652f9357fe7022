"""Nodes with long periods on data of their own hear that they go too far from each other."""

import pytest
import torch
from support.members import members
from support.nodes import config_of, eventually, is_connected

PERIOD = 10


def warned(caplog, minima, algorithm, one_call):
    """Two nodes that minimise the distance to a minimum: each its own, or one for both."""
    config = config_of(2, algorithm=algorithm, **{algorithm: {"period": PERIOD}})
    with members(config, [0.0, 0.0]) as (one, two):
        eventually(lambda: is_connected(one.adapter.connection, "w2"))
        eventually(lambda: is_connected(two.adapter.connection, "w1"))
        nodes = [one, two]
        losses = dict.fromkeys(minima)
        for _ in range(8 * PERIOD):
            if not one_call:
                for member in nodes:
                    member.adapter.update_send(losses[member.name])
            for member in nodes:
                gap = member.x - minima[member.name]
                losses[member.name] = float((gap**2).mean()) + 0.01
                with torch.no_grad():
                    member.net.weight.sub_(0.3 * gap)
            for member in nodes:
                if one_call:
                    member.adapter.step(losses[member.name])
                else:
                    member.adapter.update_wait()
    return {message.split(":")[0] for message in caplog.messages if "go far from" in message}


@pytest.mark.parametrize("one_call", [True, False])
@pytest.mark.parametrize("algorithm", ["noloco", "local"])
def test_minima_that_differ_are_noticed_by_both_nodes(caplog, algorithm, one_call):
    assert warned(caplog, {"w1": 1.0, "w2": 5.0}, algorithm, one_call) == {"w1", "w2"}
    assert f"recommended is {algorithm}.period 1" in caplog.text


def test_one_minimum_for_both_is_not(caplog):
    assert warned(caplog, {"w1": 3.0, "w2": 3.0}, "local", one_call=True) == set()
