"""Answers of nodes to those who watch are foreign: all that is wrong in them is found."""

import math

import numpy as np
import pytest
from support.told_reports import told_answer

from dpwa.errors import ProtocolError
from dpwa.observe.run_view import END_OF_TIME, MAX_FIGURES, read_answer
from dpwa.wire.messages import pack

PEER = ["w2", "tcp://127.0.0.1:2", "alive", False, 900, 3, 0.5, 2.0, 10, 20, 1.5, None, 0.1, 30, 4]


def samples(*rows):
    return np.array(rows, "<f8").tobytes()


def answer(**changed):
    told = {
        "figures": ["steps", "loss"],
        "samples": samples([1e9 + 1, 3, 0.5], [1e9 + 2, 6, math.inf]),
        "events": [[1, 1e9, "w1", "joined", "w2", ""]], "peers": [PEER],
        "members": [["w2", "tcp://127.0.0.1:2", "alive"]],
    }  # fmt: skip
    return pack(told_answer(**{"name": "w1", **told, **changed}))


def read(**changed):
    return read_answer(answer(**changed))


def test_figures_come_in_the_order_that_is_asked_for():
    rows = read().rows(("loss", "of_the_future", "steps"))
    assert rows[:, [0, 1, 3]].tolist() == [[1e9 + 1, 0.5, 3], [1e9 + 2, math.inf, 6]]
    assert np.isnan(rows[:, 2]).all()
    assert read(samples=b"").rows(("loss",)).shape == (0, 2)


def test_peers_and_events_are_told():
    told = read()
    assert (told.peers[0].name, told.peers[0].score, told.peers[0].bandwidth_mbps) == (
        "w2", 900, None
    )  # fmt: skip
    (event,) = told.happened()
    assert (event.kind, event.about, event.number) == ("joined", "w2", 1)


def test_text_of_others_is_fit_to_be_shown():
    (event,) = read(events=[[1, 1e9, "w1", "x\x1b[2J", "w\n2", "a\x07b\u202e"]]).happened()
    for text in (event.kind, event.about, event.text):
        assert text.isprintable()
        assert "\x1b" not in text


def test_what_a_newer_version_adds_is_passed_over():
    assert read(colour="red").name == "w1"


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "no name"},
        {"name": ""},
        {"pid": -1},
        {"pid": 2**63},
        {"started": math.nan},
        {"now": END_OF_TIME},
        {"host": "h" * 1001},
        {"figures": ["f"] * (MAX_FIGURES + 1)},
        {"figures": "steps"},
        {"samples": 7},
        {"events": [[1, 1e9, "w1", "joined", "w2"]]},
        {"events": [[1, math.inf, "w1", "joined", "w2", ""]]},
        {"events": 7},
        {"peers": [PEER[:-1]]},
        {"peers": [["\x1b[2J", *PEER[1:]]]},
        {"peers": [[*PEER[:4], -1, *PEER[5:]]]},
        {"peers": [[*PEER[:6], math.nan, *PEER[7:]]]},
        {"members": [["w2", "tcp://127.0.0.1:2"]]},
        {"members": None},
        {"ended": 7},
    ],
)
def test_a_field_that_is_wrong_is_named(changed):
    with pytest.raises(ProtocolError, match=f"an invalid {next(iter(changed))}"):
        read(**changed)


@pytest.mark.parametrize("payload", [b"", b"\xc1", pack([]), pack({}), b"HTTP/1.1 400"])
def test_what_is_no_answer_at_all(payload):
    with pytest.raises(ProtocolError):
        read_answer(payload)


@pytest.mark.parametrize("told", [samples([1e9, 3]), samples([1e9, 3, 1])[:-1], b"x", "text"])
def test_half_a_sample(told):
    with pytest.raises(ProtocolError, match="an incomplete sample"):
        read(samples=told).rows(("loss",))


@pytest.mark.parametrize(
    "times", [(2.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, END_OF_TIME), (1.0, math.nan)]
)
def test_samples_out_of_order(times):
    with pytest.raises(ProtocolError, match="not in order of time"):
        read(samples=samples(*[[at, 0, 0] for at in times])).rows(("loss",))
