"""Nodes that run different algorithms: refused on first contact, which both logs say."""

import pytest
from support.members import Member, in_lockstep, members
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of

from dpwa import DpwaConnection
from dpwa.errors import UserError
from dpwa.wire.messages import Refused
from dpwa.wire.transaction_messages import DecisionAck

EAGER = {
    "symmetric": {},
    "push_sum": {"push_sum": {"probability": 1.0}},
    "gossip": {},
    "lsgd": {"lsgd": {"local_period": 1, "global_period": 1}, "loss_window": 1},
    "noloco": {"noloco": {"period": 1}},
    "local": {"local": {"period": 1}},
    "elastic": {"elastic": {"period": 1}},
}
PAIRS = [
    ("gossip", "symmetric"),
    ("gossip", "push_sum"),
    ("symmetric", "push_sum"),
    ("noloco", "local"),
    ("elastic", "gossip"),
    ("gossip", "lsgd"),
]


def of_another(member):
    return status_of(member.adapter.connection, _other(member))["health"] == "other_settings"


def _other(member):
    return "w2" if member.name == "w1" else "w1"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("algorithms", PAIRS, ids="-".join)
def test_nodes_of_different_algorithms_refuse_each_other(algorithms, transport, caplog):
    config = config_of(2, transport=transport, timeout_ms=1500)
    nodes = []
    try:
        for name, algorithm, value in zip(("w1", "w2"), algorithms, (1.0, 2.0), strict=True):
            settings = {**config, "algorithm": algorithm, **EAGER[algorithm]}
            nodes.append(Member(name, settings, value))

        def have_met():
            in_lockstep(nodes, 2, lambda member: member.round(float(member.name[1:])))
            return all(map(of_another, nodes))

        eventually(have_met)
        assert [member.x[0].item() for member in nodes] == [1.0, 2.0]
        for member in nodes:
            assert member.node.report()["merges"] == 0
            told = f"{member.name}: peer"
            own = [r for r in caplog.messages if r.startswith(told) and "W007" in r]
            here, there = algorithms if member.name == "w1" else algorithms[::-1]
            assert len(own) == 1, own
            assert f"is not merged: algorithm is {here} here, {there} there" in own[0]
    finally:
        for member in nodes:
            member.adapter.close()


def test_a_proposal_of_other_terms_is_refused():
    config = config_of(2, algorithm="symmetric", transport="tcp", fetch_probability=0.0)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        answer = partner.ask(partner.proposal(terms="share"))
        assert isinstance(answer, Refused)
        assert answer.reason == "its algorithm uses exchange terms"
        assert not member.transactions._records


def test_an_answer_that_is_sent_as_a_request_takes_no_service_away():
    config = config_of(2, algorithm="symmetric", transport="tcp", fetch_probability=0.0)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        partner.say(DecisionAck(request=1, transaction=b"pair-one"))
        answer = partner.ask(partner.proposal(terms="share"))
        assert answer.reason == "its algorithm uses exchange terms"
        assert member.node.report()["bad_messages"] == 1


def test_a_proposal_to_a_node_that_makes_no_transactions_is_refused():
    config = config_of(2, transport="tcp", fetch_probability=0.0)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        for terms in ("exchange", "share"):
            assert isinstance(partner.ask(partner.proposal(terms=terms)), Refused)


@pytest.mark.parametrize(
    "algorithm", ["symmetric", "push_sum", "lsgd", "noloco", "local", "elastic"]
)
def test_raw_bytes_can_only_be_gossiped(algorithm):
    config = config_of(2, algorithm=algorithm)
    with DpwaConnection("w1", config) as connection:
        with pytest.raises(UserError) as raised:
            connection.update_send(bytes(8))
        assert f"algorithm: {algorithm}" in str(raised.value)
        assert "DpwaPyTorchAdapter" in str(raised.value)
