"""What a node refuses of one that runs another algorithm."""

import pytest
from support.members import members
from support.nodes import config_of
from support.partners import partner_of

from dpwa import DpwaConnection
from dpwa.errors import UserError
from dpwa.wire.messages import Refused
from dpwa.wire.transaction_messages import DecisionAck


def test_a_proposal_of_other_terms_is_refused():
    config = config_of(2, algorithm="symmetric", transport="tcp", fetch_probability=0.0)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        answer = partner.ask(partner.proposal(terms="share"))
        assert isinstance(answer, Refused)
        assert answer.reason == "its algorithm uses exchange terms"
        assert not member.records


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
    "algorithm", ["symmetric", "push_sum", "lsgd", "outer", "noloco", "local", "elastic"]
)
def test_raw_bytes_can_only_be_gossiped(algorithm):
    config = config_of(2, algorithm=algorithm)
    with DpwaConnection("w1", config) as connection:
        with pytest.raises(UserError) as raised:
            connection.update_send(bytes(8))
        assert f"algorithm: {algorithm}" in str(raised.value)
        assert "DpwaPyTorchAdapter" in str(raised.value)
