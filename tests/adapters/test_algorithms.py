"""Algorithms in the adapter of torch: models that change, loops that begin as they should not."""

import pytest
import torch
from support.inside import context_of
from support.members import in_lockstep, members, vector
from support.nodes import config_of, eventually

ALGORITHMS = {
    "gossip": {},
    "symmetric": {},
    "push_sum": {"push_sum": {"probability": 1.0}},
    "lsgd": {"lsgd": {"local_period": 1, "global_period": 1}, "loss_window": 1},
    "noloco": {"noloco": {"period": 1}},
    "local": {"local": {"period": 1}},
    "elastic": {"elastic": {"period": 1}},
    "outer": {"outer": {"period": 1}},
}
MOMENTUM = ("noloco", "outer")


def of(name, count=2, **settings):
    return config_of(count, algorithm=name, **{**ALGORITHMS[name], **settings})


def two_layers(value):
    return torch.nn.Sequential(vector(value, 8), vector(value, 4))


def by_value(member):
    member.round(float(member.name[1:]))


def come_together(nodes, layer):
    """Gossip until a layer is the same on both."""

    def are_there():
        in_lockstep(nodes, 2, by_value)
        one, two = (m.net[layer].weight.detach() for m in nodes)
        return (one - two).abs().max() < 1e-2

    eventually(are_there, timeout_s=15.0)


def mass_in_flight(member):
    return member.adapter.connection.node.report().get("transactions", {}).get("units_in_flight", 0)


@pytest.mark.parametrize("transport", [pytest.param("auto", marks=pytest.mark.slow), "tcp"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nodes_come_to_agree(name, transport):
    with members(of(name, transport=transport), [1.0, 3.0]) as nodes:

        def agree():
            in_lockstep(nodes, 2, by_value)
            return (nodes[0].x - nodes[1].x).abs().max() < 1e-2

        eventually(agree, timeout_s=15.0)
        overshoot = 1.0 if name in MOMENTUM else 0.01
        assert 1.0 - overshoot < nodes[0].x.min() <= nodes[0].x.max() < 3.0 + overshoot


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_layer_that_is_frozen_in_the_middle_is_left_alone(name):
    with members(of(name), [1.0, 3.0], make=two_layers) as nodes:
        come_together(nodes, 0)
        for member in nodes:
            member.net[0].weight.requires_grad_(False)
            with torch.no_grad():
                member.net[0].weight.fill_(float(member.name[1:]))
                member.net[1].weight.fill_(float(member.name[1:]))
        come_together(nodes, 1)
        for member in nodes:
            assert (member.net[0].weight == float(member.name[1:])).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_peers_whose_models_differ_for_a_moment_come_together_afterwards(name):
    with members(of(name), [1.0, 3.0], make=two_layers) as nodes:
        come_together(nodes, 0)
        for member in nodes:
            with torch.no_grad():
                member.net[1].weight.fill_(float(member.name[1:]))
        one, two = nodes
        two.net[0].weight.requires_grad_(False)
        told = context_of(two.node).peer_table

        def is_refused():
            in_lockstep(nodes, 2, by_value)
            return any(peer.health == "other_model" for peer in told.report(lambda _: {}))

        if name == "lsgd":  # the others may be told of it on either side
            eventually(is_refused)
        else:
            in_lockstep(nodes, 4, by_value)
        one.net[0].weight.requires_grad_(False)
        come_together(nodes, 1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_parameters_that_are_replaced_in_the_middle_go_on_from_their_new_values(name):
    with members(of(name), [1.0, 3.0], make=two_layers) as nodes:
        come_together(nodes, 0)
        eventually(lambda: not any(map(mass_in_flight, nodes)))  # it is of the old values
        for member in nodes:
            member.net[0] = vector(100.0 + float(member.name[1:]), 8)
        for member in nodes:
            member.adapter.update_send(float(member.name[1:]))
        come_together(nodes, 0)
        for member in nodes:
            # The first to publish may have read what the other had published before.
            assert member.net[0].weight.min() > 50.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_model_that_grows_between_send_and_wait_is_not_merged_into(name):
    with members(of(name), [1.0, 3.0], make=two_layers) as nodes:
        come_together(nodes, 0)
        one, _ = nodes
        one.adapter.update_send(0.5)
        one.net.append(vector(7.0, 2))
        before = one.x
        assert one.adapter.update_wait(0.5) is None
        assert torch.equal(one.x, before)
        one.round(0.5)
        one.round(0.5)
        assert torch.equal(one.x, before)  # its peer has a different model now


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wait_without_a_send_merges_nothing(name):
    with members(of(name), [1.0, 3.0]) as [one, two]:
        assert one.adapter.update_wait() is None
        two.round(0.5)
        assert one.adapter.update_wait() is None
        assert one.adapter.update_wait(0.5) is None
        assert (one.x == 1.0).all()
        one.round(0.5)  # and the loop may begin after all


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sends_without_waits_do_no_harm(name):
    with members(of(name), [1.0, 3.0]) as nodes:
        for _ in range(20):
            for member in nodes:
                member.adapter.update_send(float(member.name[1:]))
        assert nodes[0].node.version > 0
        for member in nodes:
            merge = member.adapter.update_wait()
            others = {"w1", "w2"} - {member.name}
            if name == "push_sum":  # a share that was not fetched in time has come back
                others.add(member.name)
            assert merge is None or merge.peer in others
        for member in nodes:
            assert 1.0 <= member.x.min() <= member.x.max() <= 3.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_node_may_close_with_everything_under_way(name):
    with members(of(name), [1.0, 3.0]) as nodes:
        in_lockstep(nodes, 3, by_value)
        for member in nodes:
            member.adapter.update_send(0.5)
        for member in nodes:
            member.adapter.close()
            member.adapter.close()
