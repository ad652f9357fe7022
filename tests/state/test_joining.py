"""Fetching a state, without sockets: donors of all kinds answer at once."""

import random
from dataclasses import replace

import numpy as np
import pytest
from support.state_answers import LAYOUT, PIECES, Donor, joiner_of

from dpwa.clock import SystemClock
from dpwa.state.joining import BRIEF, MAX_WAITING, Inbox, StateRequest
from dpwa.state.replaced_parts import Target
from dpwa.state.restore import StateRestore
from dpwa.transport.link import LinkState
from dpwa.wire import limits
from dpwa.wire.state import (
    StateBusy,
    StateGone,
    StateOffer,
    StatePiece,
    StateStanding,
)


def fetched(donors, most_donors=2, timeout_s=5.0, links=None, **wanted):
    """What a joiner gets of these donors, by name."""
    joiner = joiner_of(donors, most_donors, links)
    wanted = {"kind": LAYOUT.tensors, "most_bytes": LAYOUT.nbytes, "layout": LAYOUT, **wanted}
    return joiner.fetch(StateRequest("model", **wanted), timeout_s)


def test_a_state_comes_from_two_donors_of_equal_copies_and_both_are_told_when_it_is_there():
    donors = {"w1": Donor(1), "w2": Donor(1)}
    result = fetched(donors).fetched
    assert sum(result.pieces.values()) == PIECES
    assert result.pieces.keys() == donors.keys()
    assert set(np.unique(LAYOUT.tensors_of(result.image))) == {1}
    assert (result.clock, result.numbers, result.updates) == (50.0, b"numbers", 7)
    assert [donor.done for donor in donors.values()] == [1, 1]


@pytest.mark.parametrize("change", [{"token": b"87654321"}, {"updates": 8}], ids=str)
def test_of_copies_that_are_not_equal_it_comes_from_one(change):
    def changes(answers):
        return [
            (answer.model_copy(update=change) if isinstance(answer, StateOffer) else answer, data)
            for answer, data in answers
        ]

    donors = {"w1": Donor(1), "w2": Donor(2, changes=changes), "w3": Donor(2, changes=changes)}
    result = fetched(donors, most_donors=3).fetched
    assert len(set(np.unique(LAYOUT.tensors_of(result.image)))) == 1
    assert set(result.pieces) in ({"w1"}, {"w2", "w3"})


def offers_only(answers):
    return [(answer, data) for answer, data in answers if not isinstance(answer, StatePiece)]


def test_a_donor_of_which_nothing_comes_is_named_meanwhile(monkeypatch, caplog):
    """Such as over a way that drops large packets."""
    monkeypatch.setattr("dpwa.state.download.STALL_S", 0.1)

    result = fetched({"w7": Donor(1, changes=offers_only)}, timeout_s=0.3, node="w4")
    assert (result.fetched, result.came, result.nbytes) == (None, 0, LAYOUT.nbytes)
    assert caplog.messages[0].startswith("w4: donor w7 has sent no piece of its state for ")


def test_a_state_that_was_offered_and_did_not_come_was_waited_for_to_the_end(monkeypatch, caplog):
    monkeypatch.setattr("dpwa.state.restore.BRIEF", replace(BRIEF, offered_s=0.05))

    joiner = joiner_of({"w7": Donor(1, changes=offers_only)})
    restore = StateRestore("w4", joiner, None, SystemClock(), timeout_s=0.4)
    target = Target("model", LAYOUT.tensors, LAYOUT, LAYOUT.nbytes, lambda *_: None)
    assert restore.start(target, "ahead") is None
    assert "has sent all of its state in 0.4 s (0.0 of " in caplog.text


@pytest.mark.parametrize("token", [b"12345678", b"87654321"])
def test_a_further_part_is_of_the_same_copy_or_does_not_come(token):
    donors, copy = {"w1": Donor(1), "w2": Donor(2)}, Donor(0).token
    donors["w2"].token = token
    result = fetched(donors, tokens={"w2": copy}).fetched
    assert (None if result is None else dict(result.pieces)) == (
        {"w2": PIECES} if token == copy else None
    )


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_nobody_has_asked_for_change_nothing(seed):
    """Answers of an earlier fetch, answers twice, and offers out of nowhere."""
    rng = random.Random(seed)

    def with_junk(answers):
        honest = Donor(9)
        junk = [
            (StateOffer(**{**honest.offer(0), "nbytes": 5}), b""),
            (StateOffer(**{**honest.offer(10**6), "fingerprint": bytes(16)}), b""),
            (StateStanding(**{**honest.far(0), "is_trained": False}), b""),
            (StateBusy(request=0, retry_after_s=60.0), b""),
            (StateGone(request=0), b""),
            (StatePiece(request=0, index=0, checksum=0), b"x" * limits.CHUNK_BYTES),
            *answers,
        ]
        extra = [rng.choice(junk) for _ in range(3)]
        return [*extra, *answers, *extra]

    result = fetched({"w1": Donor(3, changes=with_junk)}).fetched
    assert set(np.unique(LAYOUT.tensors_of(result.image))) == {3}


@pytest.mark.parametrize(
    "lie", [{"nbytes": LAYOUT.nbytes + 1}, {"fingerprint": bytes(16)}], ids=str
)
def test_an_offer_of_something_else_is_no_offer(lie):
    def changes(answers):
        return [
            (answer.model_copy(update=lie) if isinstance(answer, StateOffer) else answer, payload)
            for answer, payload in answers
        ]

    assert fetched({"w1": Donor(1, changes=changes)}).fetched is None
    both = {"w1": Donor(1, changes=changes), "w2": Donor(2)}
    assert fetched(both, most_donors=1).fetched.pieces == {"w2": PIECES}


def test_a_copy_that_was_given_back_is_asked_for_again():
    asked = []

    def changes(answers):
        asked.extend(answer for answer, _ in answers)
        if len(asked) == 7 and isinstance(answers[0][0], StatePiece):
            return [(StateGone(request=answers[0][0].request), b"")]
        return answers

    result = fetched({"w1": Donor(1, changes=changes)}).fetched
    assert result.pieces == {"w1": PIECES}
    assert sum(isinstance(answer, StateOffer) for answer in asked) == 2


class CutOff:
    """A donor that brings some pieces, then nothing until it is told to."""

    def __init__(self, value, pieces):
        self.left = pieces
        self.asked = []
        self.donor = Donor(value, changes=self._changes)

    def _changes(self, answers):
        if not answers or not isinstance(answers[0][0], StatePiece):
            return answers
        self.asked.append(answers[0][0].index)
        self.left -= 1
        return answers if self.left >= 0 else []


REQUEST = StateRequest("model", LAYOUT.tensors, LAYOUT.nbytes, LAYOUT)


@pytest.mark.parametrize("most_donors", [1, 2])
def test_a_fetch_that_was_cut_off_goes_on_with_what_has_come(most_donors):
    cut_off = CutOff(3, pieces=3)
    joiner = joiner_of({"w1": cut_off.donor}, most_donors)
    result = joiner.fetch(REQUEST, 0.3)
    assert result.is_late
    assert (result.fetched, result.came, result.nbytes) == (None, 3 << 20, LAYOUT.nbytes)
    missing = set(range(PIECES)) - set(cut_off.asked[:3])
    cut_off.left, cut_off.asked = PIECES, []
    fetched = joiner.fetch(REQUEST, 5.0).fetched
    assert sorted(cut_off.asked) == sorted(missing)
    assert fetched.pieces == {"w1": PIECES}
    assert set(np.unique(LAYOUT.tensors_of(fetched.image))) == {3}
    cut_off.left, cut_off.asked = PIECES, []
    assert joiner.cut_off is None  # its memory is given back
    assert joiner.fetch(REQUEST, 5.0).fetched is not None
    assert len(cut_off.asked) == PIECES


@pytest.mark.parametrize("another_part", [False, True])
def test_what_has_come_of_another_copy_or_part_is_not_gone_on_with(another_part):
    cut_off = CutOff(3, pieces=3)
    joiner = joiner_of({"w1": cut_off.donor}, 1)
    assert joiner.fetch(REQUEST, 1.5).came == 3 << 20
    cut_off.left, cut_off.asked = PIECES, []
    cut_off.donor.image[len(LAYOUT.header) :] = 4
    if not another_part:
        cut_off.donor.token = b"87654321"
    request = replace(REQUEST, part="optimizer") if another_part else REQUEST
    fetched = joiner.fetch(request, 5.0).fetched
    assert len(cut_off.asked) == PIECES
    assert set(np.unique(LAYOUT.tensors_of(fetched.image))) == {4}


def test_what_has_come_is_not_put_together_with_another_copy():
    cut_off = CutOff(3, pieces=3)
    donors = {"w1": cut_off.donor}
    joiner = joiner_of(donors, 2)
    assert joiner.fetch(REQUEST, 1.5).came == 3 << 20
    donors["w1"] = Donor(4)
    donors["w1"].token = b"87654321"
    fetched = joiner.fetch(REQUEST, 5.0).fetched
    assert set(np.unique(LAYOUT.tensors_of(fetched.image))) == {4}


def test_one_donor_is_one_copy_even_if_it_makes_another_in_the_middle():
    asked = []

    def changes(answers):
        answer = answers[0][0] if answers else None
        asked.append(answer)
        if isinstance(answer, StatePiece) and sum(isinstance(a, StatePiece) for a in asked) == 3:
            donor.image[len(LAYOUT.header) :] = 2
            donor.token = b"87654321"
            return [(StateGone(request=answer.request), b"")]
        return answers

    donor = Donor(1, changes=changes)
    result = fetched({"w1": donor}, most_donors=1).fetched
    assert result.pieces == {"w1": PIECES}
    assert set(np.unique(LAYOUT.tensors_of(result.image))) == {2}


def test_one_donor_is_one_copy_even_if_it_is_gone_in_the_middle():
    cut_off, links = CutOff(1, pieces=3), {"w1": LinkState.UP}
    donors = {"w1": cut_off.donor, "w2": Donor(2)}
    joiner = joiner_of(donors, 1, links)
    changes = cut_off.donor.changes

    def gone(answers):
        if cut_off.left == 0:
            links.update(w1=LinkState.DOWN, w2=LinkState.UP)
        return changes(answers)

    cut_off.donor.changes = gone
    fetched = joiner.fetch(REQUEST, 5.0).fetched
    assert fetched.pieces == {"w2": PIECES}
    assert set(np.unique(LAYOUT.tensors_of(fetched.image))) == {2}


def test_others_are_connected_to_when_all_donors_are_gone():
    links, connected = {"w1": LinkState.UP, "w2": LinkState.IDLE}, []
    cut_off = CutOff(1, pieces=3)
    joiner = joiner_of({"w1": cut_off.donor, "w2": Donor(2)}, 2, links)
    changes = cut_off.donor.changes

    def gone(answers):
        if cut_off.left == 0:
            links["w1"] = LinkState.DOWN
        return changes(answers)

    def connect(count):
        if links["w1"] is LinkState.DOWN:
            connected.append(links.update(w2=LinkState.UP))

    cut_off.donor.changes, joiner.connect = gone, connect
    assert joiner.fetch(REQUEST, 5.0).fetched.pieces == {"w1": 3, "w2": PIECES - 3}
    assert len(connected) == 1


def test_who_is_not_further_than_wanted_gives_nothing():
    assert fetched({"w1": Donor(1)}, newer_than=50.0).fetched is None
    assert fetched({"w1": Donor(1)}, newer_than=49.0).fetched is not None


def test_nobody_is_waited_for_where_nobody_is():
    result = fetched({}, timeout_s=30.0)
    assert (result.fetched, result.is_late) == (None, False)
    result = fetched({}, timeout_s=30.0, links={"w1": LinkState.DOWN})
    assert (result.fetched, result.is_late) == (None, False)


def test_an_inbox_is_bounded_and_empty_after_use():
    inbox = Inbox()
    inbox.open()
    for number in range(2 * MAX_WAITING):
        inbox.receive("w1", StateGone(request=number), b"")
    inbox.close()
    inbox.receive("w1", StateGone(request=1), b"")
    assert inbox.take_answers(0.0) == []
