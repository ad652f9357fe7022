"""What becomes of a snapshot on its way into a module: clipped, blamed, or refused."""

import math

import pytest
import torch
from support.members import gossip, in_lockstep, members, vector
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of, serving

from dpwa.node.assembly import WARM_UP
from dpwa.policy.clipping import MIN_DISTANCES
from dpwa.wire.messages import Fetch


def norm_net(value):
    net = torch.nn.Sequential(vector(value), torch.nn.BatchNorm1d(1, dtype=torch.float64))
    with torch.no_grad():
        net[1].running_mean.fill_(value)
    return net


def served(member, partner, value):
    """One round in which the partner serves this value."""
    member.adapter.update_send()
    partner.version += 1
    partner.serve(partner.heard(Fetch), value, clock=member.adapter.clock)
    return member.adapter.update_wait()


@pytest.fixture
def clipping():
    """A node that clips, and a partner that serves what it likes."""
    config = config_of(2, transport="tcp", robust="clip", merge="delta")
    with members(config, [0.0]) as [member], partner_of(member) as partner:
        yield member, partner


def test_nothing_is_merged_before_the_radius_is_known(clipping):
    member, partner = clipping
    for _ in range(MIN_DISTANCES - 1):
        eventually(lambda: served(member, partner, 1.0))  # a busy machine may be late
        assert (member.x == 0.0).all()
    merge = served(member, partner, 1.0)
    assert merge.factor == 0.5
    assert (member.x == 0.5).all()


def test_an_adversary_moves_a_node_no_farther_than_an_honest_peer(clipping):
    member, partner = clipping
    for _ in range(WARM_UP):
        served(member, partner, 1.0)
        with torch.no_grad():
            member.net.weight.zero_()
    merge = eventually(lambda: served(member, partner, 1e6))  # a busy machine may be late
    assert merge.consensus_distance == pytest.approx(1e6 * math.sqrt(8))
    assert merge.factor == pytest.approx(0.5e-6)
    torch.testing.assert_close(member.x, torch.full((8,), 0.5, dtype=torch.float64))
    assert served(member, partner, 1.0).factor == 0.5


def test_an_adversary_is_clipped_in_the_buffers_too():
    config = config_of(2, robust="clip", merge="delta", fetch_probability=1.0)
    with members(config, [0.0, 0.0], make=norm_net) as (one, two):

        def honest():
            with torch.no_grad():
                for member, value in ((one, 0.0), (two, 1.0)):
                    member.net[0].weight.fill_(value)
                    member.net[1].running_mean.fill_(value)
            in_lockstep([one, two], 1)

        eventually(lambda: honest() or one.net[1].running_mean.item() > 0.0)
        with torch.no_grad():
            one.net[1].running_mean.zero_()
            two.net[1].running_mean.fill_(1e6)
        eventually(lambda: in_lockstep([one, two], 1) or one.net[1].running_mean.item() > 0.0)
        assert one.net[1].running_mean.item() < 3.0


@pytest.mark.parametrize("algorithm", ["gossip", "noloco", "local", "elastic"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_swarm_that_clips_comes_to_agree(algorithm, transport):
    options = {} if algorithm == "gossip" else {algorithm: {"period": 1}}
    config = config_of(3, algorithm=algorithm, robust="clip", transport=transport, **options)
    with members(config, [1.0, 2.0, 3.0]) as nodes:

        def spread():
            gossip(nodes, 10)
            values = torch.stack([member.x for member in nodes])
            return (values.max(0).values - values.min(0).values).max()

        eventually(lambda: spread() < 0.1)


def test_a_center_is_left_alone_by_what_is_clipped_away():
    """A center that is to go nowhere toward a peer's stays, wherever the parameters are."""
    options = {"period": 1, "beta": 0.25}
    config = config_of(2, algorithm="elastic", robust="clip", elastic=options)
    with members(config, [0.0, 10.0]) as nodes:
        center = x = 0.0
        rounds = nodes[0].adapter.connection.node.rounds
        nodes[0].adapter.connection.wait_for_peers(timeout_s=60)
        while rounds.merges < MIN_DISTANCES - 1:  # none of them moves a center
            in_lockstep(nodes, 1)
            gap = x - center
            x, center = x - gap * 0.25 / 2, center + gap * 0.25
            assert nodes[0].adapter.center()["weight"][0, 0] == pytest.approx(center)
            x += 1.0
            with torch.no_grad():
                nodes[0].net.weight.add_(1.0)


# Quarantine


def test_a_peer_that_does_harm_is_left_alone():
    config = config_of(3, transport="tcp", quarantine_s=60.0, timeout_ms=10_000)
    with (
        members(config, [0.0]) as [member],
        partner_of(member, "w2") as harmful,
        partner_of(member, "w3") as honest,
        serving(harmful, honest),
    ):
        connection = member.adapter.connection
        noise = [0.02, -0.01, 0.01, -0.02]

        def one_round(loss):
            member.adapter.update_send()
            merge = member.adapter.update_wait(loss)
            return None if merge is None else merge.peer

        for index in range(30):
            one_round(1.0 + noise[index % 4])
        loss, asked = 1.0, []
        for index in range(60):
            asked.append(one_round(loss))
            loss = 100.0 if asked[-1] == "w2" else 1.0 + noise[index % 4]
            if status_of(connection, "w2")["quarantined"]:
                break
        assert status_of(connection, "w2")["quarantined"], asked
        assert not status_of(connection, "w3")["quarantined"]
        assert {one_round(1.0) for _ in range(10)} - {None} == {"w3"}


# The other loops


@pytest.mark.parametrize("algorithm", ["gossip", "symmetric", "push_sum", "local", "outer"])
def test_one_call_a_step_gossips_like_two(algorithm):
    options = {"local": {"period": 1}} if algorithm == "local" else {}
    config = config_of(2, algorithm=algorithm, **options)
    with members(config, [1.0, 3.0]) as nodes:
        assert nodes[0].adapter.step() is None  # the first time there is nothing to wait for
        nodes[1].adapter.step()

        def have_come():
            in_lockstep(nodes, 2, lambda member: member.adapter.step())
            return (nodes[0].x - nodes[1].x).abs().max() < 1e-3

        eventually(have_come)
