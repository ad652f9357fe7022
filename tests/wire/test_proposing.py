"""The asking side of a transaction, without sockets."""

import msgpack
import pytest

from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import ProtocolError
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Ended, Greeting
from dpwa.wire.limits import PROTOCOL_VERSION
from dpwa.wire.messages import (
    NotReady,
    OtherModel,
    Refused,
    decode,
    encode,
    pack_layout,
)
from dpwa.wire.proposing import ProposeSession
from dpwa.wire.transaction_messages import Agreed, Busy, DecisionAck, Propose

TRANSACTION = b"pair-one"
NEWS = (("w1", "a", 0.5, 1, 2, 0.25),)


def layout_of(*shape):
    return Layout((TensorSpec("weight", "float32", shape, 4),))


def session(terms="exchange", layout=None):
    greeting = Greeting("w1", NEWS)
    return ProposeSession(7, TRANSACTION, terms, 3, layout or layout_of(4), greeting)


def agreed(**fields):
    return Agreed(
        **{
            "request": 7,
            "transaction": TRANSACTION,
            "version": 5,
            "clock": 4.0,
            "units": 0,
            "news": (),
            **fields,
        }
    )


@pytest.mark.parametrize("terms", ["exchange", "share"])
def test_a_proposal_says_who_asks_for_what(terms):
    message = session(terms).request_message(budget_ms=250)
    again, _ = decode([encode(message)])
    assert again == message
    assert message == Propose(
        request=7,
        transaction=TRANSACTION,
        name="w1",
        terms=terms,
        fingerprint=layout_of(4).fingerprint,
        version=3,
        news=NEWS,
        budget_ms=250,
    )


def test_an_agreement_says_which_snapshot_and_how_much_mass():
    said = agreed(version=9, units=2**40, news=NEWS)
    assert session().receive(said, b"") == said


def test_an_agreement_to_another_transaction_is_no_answer():
    with pytest.raises(ProtocolError):
        session().receive(agreed(transaction=b"whatever"), b"")


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (NotReady(request=7), Outcome.NOT_READY, ""),
        (Busy(request=7, transaction=TRANSACTION), Outcome.BUSY, ""),
        (Refused(request=7, reason="no"), Outcome.MISBEHAVED, "the peer refuses: no"),
    ],
)
def test_a_refusal_says_why(answer, outcome, words):
    assert session().receive(answer, b"") == Ended(outcome, words)


def test_another_model_is_described_by_its_first_difference():
    event = session().receive(OtherModel(request=7), pack_layout(layout_of(5)))
    assert event.outcome is Outcome.OTHER_MODEL
    assert "weight" in event.detail


def test_what_is_no_answer_to_a_proposal_is_not_allowed():
    with pytest.raises(ProtocolError):
        session().receive(DecisionAck(request=7, transaction=TRANSACTION), b"")


@pytest.mark.parametrize(
    "fields",
    [
        {"transaction": b"short"},
        {"transaction": b"nine-byte"},
        {"version": -1},
        {"version": 2**63},
        {"units": -1},
        {"units": 2**63},
        {"units": 0.5},
        {"news": (("w1",),)},
    ],
)
def test_an_agreement_out_of_bounds_is_not_decoded(fields):
    header = {"v": PROTOCOL_VERSION, "type": "agreed", **agreed().model_dump(), **fields}
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(header)])
