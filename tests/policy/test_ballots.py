"""Ballots: each rule by hand; the laws are in `tests/collectives/test_ballots_of_nodes.py`."""

from __future__ import annotations

import pytest

from dpwa.policy.ballots import (
    GONE_S,
    LATE_S,
    LONGEST_LOOK_S,
    STALLED_S,
    Ballot,
    Decision,
    Stand,
)
from dpwa.policy.group_views import Member

ABC = ("a", "b", "c")
TICK = 0.01  # seconds between two looks at the clock
READY = Stand(entered=True, ready=True, seen=ABC)
AT_WORK = Stand(entered=True, ready=False)
ABSENT = Stand(entered=False, ready=False)


def ballot_of(own="a", members=ABC, stand=AT_WORK):
    return Ballot(own, members, stand, opened=0.0)


def wait(ballot, until_s, since_s=0.0, gone=(), entered=ABC):
    """Let a ballot look at the clock often enough; return when its vote has changed."""
    changes = []
    for look in range(1, round((until_s - since_s) / TICK) + 1):
        now = since_s + look * TICK
        if ballot.pass_time(now, gone, entered):
            changes.append(pytest.approx(now))
    return changes


def decided(stands, suspects=(), members=ABC):
    """What the first of some voters decides; all have the same suspicions."""
    (own, stand), *others = stands.items()
    ballot = Ballot(own, members, stand, 0.0, set(suspects))
    for name, other in others:
        ballot.record_vote(name, suspects, other, 0.0)
    return ballot.decision()


# Votes


def test_there_is_no_decision_before_everybody_has_voted():
    ballot = ballot_of()
    assert ballot.silent() == ("b", "c")
    assert not ballot.record_vote("b", (), AT_WORK, 0.0)
    assert ballot.silent() == ("c",)
    assert ballot.decision() is None
    assert not ballot.record_vote("c", (), AT_WORK, 0.0)
    assert ballot.decision() == Decision(holds=False)


def test_a_node_alone_decides_at_once():
    assert ballot_of(members=("a",)).decision() == Decision(holds=False)
    assert decided({"a": READY}, members=("a",)) == Decision(holds=True)


def test_suspicions_are_taken_over_and_asked_for_again():
    ballot = ballot_of()
    ballot.record_vote("b", (), AT_WORK, 0.0)
    ballot.record_vote("c", (), AT_WORK, 0.0)
    late = ballot_of()
    late.record_vote("c", (), AT_WORK, 0.0)
    assert late.record_vote("b", ("c",), AT_WORK, 0.0)
    assert late.suspects == {"c"}
    assert late.decision() == Decision(holds=False, lost=("c",))
    assert not late.record_vote("b", ("c",), AT_WORK, 0.1)


def test_who_votes_with_other_suspicions_has_not_voted_yet():
    members = (*ABC, "d")
    ballot = ballot_of(members=members)
    ballot.record_vote("b", (), AT_WORK, 0.0)
    assert ballot.record_vote("c", ("d",), AT_WORK, 0.0)
    assert ballot.silent() == ("b",)
    assert ballot.decision() is None
    assert not ballot.record_vote("b", ("d",), AT_WORK, 0.1)
    assert ballot.decision() == Decision(holds=False, lost=("d",))


def test_who_is_suspected_by_a_member_is_left_behind_and_decides_nothing():
    ballot = ballot_of()
    ballot.record_vote("b", (), AT_WORK, 0.0)
    ballot.record_vote("c", (), AT_WORK, 0.0)
    assert not ballot.record_vote("c", ("a",), AT_WORK, 0.1)
    assert ballot.is_left_behind
    assert ballot.decision() is None


@pytest.mark.parametrize("suspects", [("a",), ("b",)])
def test_who_is_suspected_is_not_heard_any_more(suspects):
    ballot = ballot_of()
    ballot.suspects.add("c")
    assert not ballot.record_vote("c", suspects, AT_WORK, 0.0)
    assert not ballot.is_left_behind
    assert ballot.suspects == {"c"}


def test_strangers_are_not_heard():
    ballot = ballot_of()
    assert not ballot.record_vote("stranger", ("a", "b"), READY, 0.0)
    assert not ballot.is_left_behind
    assert not ballot.suspects


def test_who_leaves_suspects_itself_and_is_suspected_by_all():
    ballot = ballot_of()
    assert ballot.record_vote("c", ("c",), AT_WORK, 0.0)
    assert ballot.suspects == {"c"}
    ballot.record_vote("b", ("c",), AT_WORK, 0.0)
    assert ballot.decision() == Decision(holds=False, lost=("c",))


# Time


def test_who_is_silent_though_connected_is_suspected_after_the_stalled_time():
    ballot = ballot_of()
    ballot.record_vote("b", (), AT_WORK, 0.0)
    assert wait(ballot, STALLED_S - TICK) == []
    assert wait(ballot, STALLED_S + TICK, STALLED_S - TICK) != []
    assert ballot.suspects == {"c"}


def test_who_cannot_be_reached_any_more_is_suspected_soon_and_nobody_else():
    ballot = ballot_of()
    assert wait(ballot, GONE_S - TICK, gone={"c"}) == []
    assert wait(ballot, GONE_S + TICK, GONE_S - TICK, gone={"c"}) != []
    assert ballot.suspects == {"c"}
    assert wait(ballot, STALLED_S - TICK, GONE_S + TICK, gone={"c"}) == []


def test_who_has_not_entered_in_time_is_not_waited_for_as_it_is_lost_whatever_it_votes():
    for stand, is_late in [
        (AT_WORK, False),
        (Stand(entered=True, ready=False, expired=True), True),
        (Stand(entered=True, ready=True, expired=True), False),  # all have entered
    ]:
        ballot = ballot_of(stand=stand)
        assert wait(ballot, LATE_S - TICK, entered={"a", "b"}) == []
        assert (
            wait(ballot, LATE_S + TICK, LATE_S - TICK, entered={"a", "b"})
            == [pytest.approx(LATE_S, abs=2 * TICK)] * is_late
        )
        assert ballot.suspects == ({"c"} if is_late else set())


def test_who_cannot_be_reached_any_more_but_has_voted_is_not_suspected():
    ballot = ballot_of(members=("a", "b"))
    ballot.record_vote("b", (), AT_WORK, 0.0)
    assert wait(ballot, 2 * STALLED_S, gone={"b"}) == []
    assert ballot.decision() == Decision(holds=False)


def test_patience_begins_anew_when_suspicions_change():
    ballot = ballot_of(members=(*ABC, "d"))
    wait(ballot, 4.0)
    assert ballot.record_vote("b", ("d",), AT_WORK, 4.0)
    assert wait(ballot, 4.0 + STALLED_S - TICK, 4.0) == []
    assert wait(ballot, 4.0 + STALLED_S + 2 * TICK, 4.0 + STALLED_S - TICK) != []
    assert ballot.suspects == {"c", "d"}


def test_what_a_node_slept_through_is_not_held_against_the_others():
    ballot = ballot_of()
    wait(ballot, 0.1)
    assert not ballot.pass_time(9.0, ABC, ())  # their votes may be there, but not read yet
    assert not ballot.record_vote("b", (), AT_WORK, 9.0)
    assert not ballot.record_vote("c", (), AT_WORK, 9.0)
    assert ballot.decision() == Decision(holds=False)


def test_who_is_silent_after_a_node_has_slept_is_suspected_in_the_end():
    ballot = ballot_of()
    ballot.pass_time(9.0, (), ABC)
    assert wait(ballot, 9.0 + STALLED_S - LONGEST_LOOK_S - TICK, 9.0) == []
    assert wait(ballot, 9.0 + STALLED_S, 9.0 + STALLED_S - LONGEST_LOOK_S - TICK) != []
    assert ballot.suspects == {"b", "c"}


# Decisions


def test_it_holds_if_all_are_ready():
    stand = Stand(entered=True, ready=True)
    assert decided(dict.fromkeys(ABC, stand)) == Decision(holds=True)
    assert decided({"a": stand, "b": stand, "c": AT_WORK}) == Decision(holds=False)


def test_it_holds_without_who_is_lost_if_any_survivor_knows_that_it_was_ready():
    unseen = Stand(entered=True, ready=True)
    seen = Stand(entered=True, ready=True, seen=("c",))
    assert decided({"a": unseen, "b": seen}, ["c"]) == Decision(holds=True, lost=("c",))
    assert decided({"a": seen, "b": unseen}, ["c"]) == Decision(holds=True, lost=("c",))
    assert decided({"a": unseen, "b": unseen}, ["c"]) == Decision(holds=False, lost=("c",))


def test_it_does_not_hold_for_a_survivor_that_was_not_ready_whatever_others_have_seen():
    assert decided({"a": READY, "b": AT_WORK}, ["c"]) == Decision(holds=False, lost=("c",))


def test_who_has_not_entered_is_lost_if_the_time_of_any_voter_is_over():
    expired = Stand(entered=True, ready=False, expired=True)
    assert decided({"a": AT_WORK, "b": ABSENT, "c": expired}).lost == ("b",)
    assert decided({"b": ABSENT, "a": AT_WORK, "c": expired}).lost == ("b",)  # it says so itself
    assert decided({"a": AT_WORK, "b": ABSENT, "c": AT_WORK}).lost == ()
    assert decided({"a": AT_WORK, "b": expired, "c": AT_WORK}).lost == ()


def test_who_is_lost_stands_in_order_of_rank():
    ballot = Ballot("b", ("d", "b", "c", "a"), AT_WORK, 0.0, {"a", "c", "d"})
    assert ballot.decision().lost == ("d", "c", "a")


def test_all_who_have_asked_any_voter_are_let_in():
    one, two = Member("x", b"1"), Member("y", b"2")
    by_one = Stand(entered=True, ready=False, join_requests=(two,))
    by_both = Stand(entered=True, ready=False, join_requests=(two, one))
    assert decided({"a": by_one, "b": by_both, "c": AT_WORK}).joiners == (one, two)
    assert decided({"a": AT_WORK, "b": AT_WORK}, ["c"]).joiners == ()
