"""LSGD between real nodes."""

from functools import partial

import pytest
import torch
from support.members import gossip, in_lockstep, members
from support.nodes import at_once, config_of, eventually

from dpwa.transport.link import LinkState

FAST = {"local_period": 1, "global_period": 1, "c1": 0.5, "c2": 0.5}


def following(count, **settings):
    """A configuration of LSGD where leaders change at once and jumps are frequent."""
    defaults = {"algorithm": "lsgd", "loss_window": 1, "lsgd": FAST, "transport": "tcp"}
    return config_of(count, **{**defaults, **settings})


def by_value(member):
    """A round in which the loss is the value that the node began with: w1 leads."""
    member.round(float(member.name[1:]) / 10)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_all_come_to_the_leader_which_is_not_moved(transport):
    with members(following(3, transport=transport), [1.0, 2.0, 3.0]) as nodes:

        def is_there():
            in_lockstep(nodes, 5, by_value)
            return max((m.x - 1.0).abs().max() for m in nodes) < 1e-6

        eventually(is_there)
        assert (nodes[0].x == 1.0).all()
        assert nodes[0].node.report()["merges"] == 0


def with_batch_norm(value):
    made = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    with torch.no_grad():
        made[1].running_mean.fill_(value)
    return made


def only_buffers(count, **settings):
    """A configuration in which nodes lead themselves, and buffers alone are merged, each update."""
    never = {"local_period": count, "global_period": count * 10**6}
    still = dict.fromkeys(("p1", "p2", "c1", "c2"), 0.0)
    config = following(count, lsgd={**never, **still}, **settings)
    config["nodes"] = [{**n, "group": n["name"]} for n in config["nodes"]]
    return config


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_buffers_become_the_mean_of_all_workers_and_nothing_else_is_fetched_for_that(transport):
    config = only_buffers(3, transport=transport)
    with members(config, [1.0, 2.0, 3.0], make=with_batch_norm) as nodes:
        before = [member.x for member in nodes]
        eventually(lambda: {LinkState.UP} == {s for m in nodes for s in m.node.links.values()})
        at_once([partial(m.adapter.update_send, float(m.name[1:])) for m in nodes])
        at_once([m.adapter.update_wait for m in nodes])
        for member in nodes:
            assert member.net[1].running_mean == pytest.approx(2.0)
        assert all(torch.equal(m.x, x) for m, x in zip(nodes, before, strict=True))
        for member in nodes:
            report = member.node.report()
            assert report["merges"] == 0
            assert report["bytes_received"] < 100_000  # a model is 370 KB


def test_buffers_of_nodes_out_of_step_agree_between_what_they_were():
    config = only_buffers(3, transport="auto")
    with members(config, [1.0, 2.0, 6.0], make=with_batch_norm) as nodes:
        eventually(lambda: {LinkState.UP} == {s for m in nodes for s in m.node.links.values()})
        at_once([partial(m.adapter.update_send, float(m.name[1:])) for m in nodes])
        for _ in range(20):  # each waits alone, and publishes before the next one waits
            for member in nodes:
                member.adapter.update_wait()
                member.adapter.update_send(float(member.name[1:]))
        held = [member.net[1].running_mean[0].item() for member in nodes]
        assert held == pytest.approx([held[0]] * 3, abs=1e-4)
        assert 1.0 < held[0] < 6.0


def test_gossip_with_the_leader_rule_asks_the_leader():
    config = config_of(3, interpolation="leader", loss_window=1, transport="tcp")
    with members(config, [1.0, 2.0, 3.0]) as nodes:

        def have_come():
            gossip(nodes, 5, by_value)
            return max((m.x - 1.0).abs().max() for m in nodes) < 1e-3

        eventually(have_come, 20.0)
        assert (nodes[0].x == 1.0).all()
