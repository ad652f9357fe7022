"""Who leads, as real nodes know it: over messages, over boards in shared memory, and in silence."""

import math
import time

import pytest
from support.inside import context_of, threads_of
from support.members import in_lockstep, members
from support.nodes import config_of, eventually
from support.partners import partner_of
from support.times import at_most

from dpwa.wire.messages import Goodbye, NewsMessage, pack

TRANSPORTS = ("auto", "tcp")


def following(count, **settings):
    """A configuration whose nodes pass on who leads."""
    defaults = {"interpolation": "leader", "loss_window": 1, "transport": "tcp"}
    return config_of(count, **{**defaults, **settings})


def in_groups(config, *groups):
    """The same, each node in a group."""
    nodes = [{**n, "group": g} for n, g in zip(config["nodes"], groups, strict=True)]
    return {**config, "nodes": nodes}


def news_of(member):
    return member.node.report()["news"]


def leaders_of(nodes):
    return [(news_of(m)["leader"], news_of(m)["group_leader"]) for m in nodes]


def round_with(losses):
    return lambda member: member.round(losses[member.name])


def until_all_know(nodes, losses, expected, found=None):
    """Gossip until all nodes know these leaders, or what is expected of `found`."""

    def know():
        in_lockstep(nodes, 3, round_with(losses))
        return (leaders_of(nodes) if found is None else found()) == expected

    eventually(know, 10.0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_come_to_know_the_leader_of_all_and_that_of_their_group(transport):
    config = in_groups(following(4, transport=transport), "a", "a", "b", "b")
    losses = {"w1": 0.4, "w2": 0.2, "w3": 0.1, "w4": 0.3}
    with members(config, range(4)) as nodes:
        until_all_know(nodes, losses, [("w3", "w2"), ("w3", "w2"), ("w3", "w3"), ("w3", "w3")])
        # Of who leads nowhere, news may come later.
        until_all_know(nodes, losses, [4] * 4, lambda: [news_of(m)["known"] for m in nodes])
        assert [m.adapter.leader for m in nodes] == ["w3"] * 4
        assert [news_of(m)["running_loss"] for m in nodes] == [0.4, 0.2, 0.1, 0.3]


def test_boards_spread_news_without_a_message():
    config = following(2, transport="shm")
    with members(config, [1.0, 2.0]) as nodes:
        losses = {"w1": 0.5, "w2": 0.1}
        until_all_know(nodes, losses, [("w2", "w2")] * 2)
        eventually(
            lambda: (
                not any(context_of(m.node).peer_table.has_unmapped for m in nodes) or _round(nodes)
            )
        )
        losses["w1"] = 0.01
        until_all_know(nodes, losses, [("w1", "w1")] * 2)
        assert [m.node.report()["bytes_sent"] for m in nodes] == [0, 0]


def _round(nodes):
    in_lockstep(nodes, 1, round_with({"w1": 0.5, "w2": 0.1}))


@pytest.mark.parametrize("worthless", [math.nan, math.inf, None])
def test_a_loss_that_is_no_number_never_leads(worthless):
    with members(following(3), range(3)) as nodes:
        losses = {"w1": worthless, "w2": 0.5, "w3": 0.9}
        until_all_know(nodes, losses, [("w2", "w2")] * 3)


def test_a_loss_of_the_users_own_decides_in_place_of_the_training_loss():
    with members(following(2), [1.0, 2.0], leader_loss=lambda: 0.25) as nodes:
        in_lockstep(nodes, 5, round_with({"w1": 0.1, "w2": 0.9}))
        assert [news_of(m)["running_loss"] for m in nodes] == [0.25, 0.25]


def test_a_leader_that_is_silent_is_replaced():
    silence_s = 0.6
    config = following(3, leader_silence_s=silence_s, timeout_ms=100)
    losses = {"w1": 0.1, "w2": 0.2, "w3": 0.3}
    with members(config, range(3)) as nodes:
        until_all_know(nodes, losses, [("w1", "w1")] * 3)
        start = time.monotonic()
        until_all_know(nodes[1:], losses, [("w2", "w2")] * 2)
        assert time.monotonic() - start < at_most(3 * silence_s)


def test_a_leader_that_says_goodbye_leads_no_more_at_once():
    config = following(3, leader_silence_s=1000.0)
    losses = {"w1": 0.1, "w2": 0.2, "w3": 0.3}
    with members(config, range(3)) as nodes:
        until_all_know(nodes, losses, [("w1", "w1")] * 3)
        # Who was never connected cannot say goodbye.
        eventually(lambda: all(map(threads_of(nodes[0].node).tx.reaches, ("w2", "w3"))))
        nodes[0].adapter.close()
        until_all_know(nodes[1:], losses, [("w2", "w2")] * 2)


# A partner that is free to say what it likes


def report(node="w2", group="", loss=0.1, incarnation=2**60, version=1, age_s=0.0):
    return (node, group, loss, incarnation, version, age_s)


@pytest.fixture
def one():
    """A node, and a partner that plays the other."""
    with members(following(2, timeout_ms=50), [1.0]) as [member], partner_of(member) as partner:
        member.round(0.5)
        yield member, partner


def test_news_is_answered_with_news(one):
    member, partner = one
    answer = partner.ask(NewsMessage(request=5, news=(report(),)))
    assert isinstance(answer, NewsMessage)
    assert answer.request == 5
    assert answer.news[0][0] == "w1"
    assert news_of(member)["leader"] == "w2"


def test_a_goodbye_counts_once_the_connection_is_gone_whatever_is_said_later(one):
    member, partner = one
    partner.ask(NewsMessage(request=1, news=(report(),)))
    partner.say(Goodbye(request=0, name="w2"))  # which anybody may say
    time.sleep(0.2)
    assert news_of(member)["leader"] == "w2"
    partner.hang_up()
    eventually(lambda: news_of(member)["leader"] == "w1")
    partner.ask(NewsMessage(request=2, news=(report(version=9),)))
    assert news_of(member)["leader"] == "w1"


def test_news_of_oneself_is_not_believed(one):
    member, partner = one
    partner.ask(NewsMessage(request=1, news=(report("w1", loss=-9.0), report(loss=0.4))))
    assert news_of(member)["leader"] == "w2"
    assert news_of(member)["running_loss"] == 0.5


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        pack(7),
        pack("news"),
        pack([["w2"]]),
        pack([["w2", "", "low", 1, 1, 0.0]]),
        pack([["w2", "", math.nan, 1, 1, 0.0]]),
        pack([["w2", "", -math.inf, 1, 1, 0.0]]),
        pack([["w2", "", 0.1, -1, 1, 0.0]]),
        pack([["w2", "", 0.1, 1, 2**64 - 1, 0.0]]),
        pack([["w2", "", 0.1, 1, 1, -1.0]]),
        pack([["w2", "", 0.1, 1, 1, math.inf]]),
        pack([["w" * 65, "", 0.1, 1, 1, 0.0]]),
        pack([list(report(incarnation=1))] * 33),
        pack([list(report(incarnation=1))])[:-1],
    ],
)
def test_garbage_on_a_board_is_no_news(one, garbage):
    member, _ = one
    context_of(member.node).leader_table.hear_packed(garbage)
    assert news_of(member)["known"] == 1
    assert news_of(member)["leader"] == "w1"
