"""Who leads is chosen among those that this node can merge, whatever strangers say."""

import time
from contextlib import contextmanager

import pytest
from support.inside import context_of, fingerprint_of
from support.members import in_lockstep, members
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of
from support.requests import fetch_of

from dpwa.wire.limits import MAX_HEADER_BYTES, MAX_NAME_CHARACTERS, MAX_NEWS
from dpwa.wire.messages import AskSettings, NewsMessage, OtherSettings, Refused, encode, pack
from dpwa.wire.transaction_messages import Propose


@contextmanager
def one_of_three(**settings):
    """The first of three nodes that follow the leader of all; a partner plays the second."""
    settings = {"algorithm": "lsgd", "transport": "tcp", "timeout_ms": 100, **settings}
    with members(config_of(3, **settings), [1.0]) as [member], partner_of(member) as partner:
        member.round(0.5)
        yield member, partner


def report(node, loss=0.1, version=1, incarnation=2**60):
    return (node, "", loss, incarnation, version, 0.0)


def told(partner, *news):
    """Tell news, and wait for the answer."""
    assert partner.ask(NewsMessage(request=1, news=news))


def test_reports_do_not_bring_back_a_leader_that_was_removed_from_view():
    with one_of_three() as (member, partner):
        told(partner, report("w2", 0.2), report("w3", 0.1))
        assert member.adapter.leader == "w3"
        member.node.remove_peer("w3")
        told(partner, report("w3", 0.1, incarnation=2**60 + 1))  # it has been started again
        assert member.node.report()["news"]["known"] == 3
        assert member.adapter.leader == "w2"
        assert member.node.rounds.view.leader(of_all=False) == "w2"


def test_a_peer_that_is_added_again_may_lead_again():
    with one_of_three() as (member, partner):
        told(partner, report("w3"))
        member.node.remove_peer("w3")
        port = member.node.config.node("w3").port
        member.node.add_peer("w3", "127.0.0.1", port)
        told(partner, report("w3", version=2))
        assert member.adapter.leader == "w3"


def test_a_stranger_with_the_lowest_loss_does_not_keep_others_from_leading():
    with one_of_three() as (member, partner):
        told(partner, report("stranger", -9.0), report("w2", 0.2))
        assert member.adapter.leader == "w2"


def test_a_peer_in_quarantine_does_not_lead():
    with one_of_three() as (member, partner):
        told(partner, report("w2", 0.2), report("w3", 0.1))
        context_of(member.node).peer_table.quarantine({"w3"})
        assert member.adapter.leader == "w2"


@pytest.mark.parametrize("kind", ["news", "fetch", "proposal"])
def test_who_runs_another_algorithm_does_not_lead(kind):
    with one_of_three() as (member, partner):
        partner.heard(AskSettings)
        own = context_of(member.node).settings.own
        partner.answer(OtherSettings(request=0), pack({**own, "algorithm": "gossip"}))
        eventually(lambda: status_of(member.adapter.connection, "w2")["health"] == "other_settings")
        news = (report("w2", 0.01),)
        if kind == "news":
            told(partner, *news)
        elif kind == "fetch":
            fingerprint = fingerprint_of(member)
            assert partner.ask(fetch_of(fingerprint, news=news))
        else:
            proposal = partner.proposal(news=news)
            assert isinstance(proposal, Propose)
            assert isinstance(partner.ask(proposal), Refused)
        assert member.adapter.leader == "w1"


def test_news_of_many_strangers_is_kept_of_a_few_only():
    with one_of_three() as (member, partner):
        for start in range(0, 4096, MAX_NEWS):
            told(partner, *(report(f"x{start + index}") for index in range(MAX_NEWS)))
        assert member.node.report()["news"]["known"] < 128


def test_the_longest_news_leave_room_in_a_message():
    name = "n" * MAX_NAME_CHARACTERS
    longest = [(name, name, -1e308, 2**62, 2**53, 1e9)] * MAX_NEWS
    greeting = {"name": name, "news": longest}
    assert len(encode(fetch_of(bytes(16), **greeting))) < MAX_HEADER_BYTES


def test_news_of_a_stranger_does_not_stop_jumps():
    often = {"algorithm": "lsgd", "lsgd": {"local_period": 2, "global_period": 2}}
    config = config_of(2, transport="tcp", timeout_ms=500, **often)
    with members(config, [1.0, 2.0]) as nodes:
        losses = {"w1": 0.1, "w2": 0.5}
        jumps = []

        def each(member):
            jumps.append(member.round(losses[member.name]))
            time.sleep(0.01)

        in_lockstep(nodes, 40, each)
        before = sum(j is not None for j in jumps)
        jumps.clear()
        context_of(nodes[1].node).leader_table.receive_news(
            (("stranger", "g", None, 1, 2**53, 0.0),)
        )
        in_lockstep(nodes, 40, each)
        after = sum(j is not None for j in jumps)
        assert after > before / 2
