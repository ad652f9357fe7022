"""Ballots: each rule by hand, and the laws of agreement in random runs of whole networks."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from support.ballot_network import MOMENTS, TICK_S, Fault, Network, Schedule

from dpwa.policy.ballots import (
    GONE_S,
    LATE_S,
    LONGEST_LOOK_S,
    STALLED_S,
    Ballot,
    Decision,
    Stand,
)
from dpwa.policy.group_views import GroupView, Member

ABC = ("a", "b", "c")
TICK = TICK_S[0]
READY = Stand(entered=True, ready=True, seen=frozenset(ABC))
AT_WORK = Stand(entered=True, ready=False)
ABSENT = Stand(entered=False, ready=False)
IN_TIME_S = 60.0  # when everything is long over
MAX_DELAY_S = 0.05
SHORT_STOP_S = 0.25  # a stopped node, its clock and two messages stay below `LATE_S`
LONG_STOP_S = 4.5  # likewise, below `STALLED_S`
# A round of suspicions lasts no longer than the patience, a look at the clock and two messages.
ROUND_S = TICK_S[1] + 2 * MAX_DELAY_S


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
        ballot.hear(name, suspects, other, 0.0)
    return ballot.decision()


# Votes


def test_there_is_no_decision_before_everybody_has_voted():
    ballot = ballot_of()
    assert ballot.silent() == ("b", "c")
    assert not ballot.hear("b", (), AT_WORK, 0.0)
    assert ballot.silent() == ("c",)
    assert ballot.decision() is None
    assert not ballot.hear("c", (), AT_WORK, 0.0)
    assert ballot.decision() == Decision(holds=False)


def test_a_node_alone_decides_at_once():
    assert ballot_of(members=("a",)).decision() == Decision(holds=False)
    assert decided({"a": READY}, members=("a",)) == Decision(holds=True)


def test_suspicions_are_taken_over_and_asked_for_again():
    ballot = ballot_of()
    ballot.hear("b", (), AT_WORK, 0.0)
    ballot.hear("c", (), AT_WORK, 0.0)
    late = ballot_of()
    late.hear("c", (), AT_WORK, 0.0)
    assert late.hear("b", ("c",), AT_WORK, 0.0)
    assert late.suspects == {"c"}
    assert late.decision() == Decision(holds=False, lost=("c",))
    assert not late.hear("b", ("c",), AT_WORK, 0.1)


def test_who_votes_with_other_suspicions_has_not_voted_yet():
    members = (*ABC, "d")
    ballot = ballot_of(members=members)
    ballot.hear("b", (), AT_WORK, 0.0)
    assert ballot.hear("c", ("d",), AT_WORK, 0.0)
    assert ballot.silent() == ("b",)
    assert ballot.decision() is None
    assert not ballot.hear("b", ("d",), AT_WORK, 0.1)
    assert ballot.decision() == Decision(holds=False, lost=("d",))


def test_who_is_suspected_by_a_member_is_left_behind_and_decides_nothing():
    ballot = ballot_of()
    ballot.hear("b", (), AT_WORK, 0.0)
    ballot.hear("c", (), AT_WORK, 0.0)
    assert not ballot.hear("c", ("a",), AT_WORK, 0.1)
    assert ballot.is_left_behind
    assert ballot.decision() is None


@pytest.mark.parametrize("suspects", [("a",), ("b",)])
def test_who_is_suspected_is_not_heard_any_more(suspects):
    ballot = ballot_of()
    ballot.suspects.add("c")
    assert not ballot.hear("c", suspects, AT_WORK, 0.0)
    assert not ballot.is_left_behind
    assert ballot.suspects == {"c"}


def test_strangers_are_not_heard():
    ballot = ballot_of()
    assert not ballot.hear("stranger", ("a", "b"), READY, 0.0)
    assert not ballot.is_left_behind
    assert not ballot.suspects


def test_who_leaves_suspects_itself_and_is_suspected_by_all():
    ballot = ballot_of()
    assert ballot.hear("c", ("c",), AT_WORK, 0.0)
    assert ballot.suspects == {"c"}
    ballot.hear("b", ("c",), AT_WORK, 0.0)
    assert ballot.decision() == Decision(holds=False, lost=("c",))


# Time


def test_who_is_silent_though_connected_is_suspected_after_the_stalled_time():
    ballot = ballot_of()
    ballot.hear("b", (), AT_WORK, 0.0)
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
    ballot.hear("b", (), AT_WORK, 0.0)
    assert wait(ballot, 2 * STALLED_S, gone={"b"}) == []
    assert ballot.decision() == Decision(holds=False)


def test_patience_begins_anew_when_suspicions_change():
    ballot = ballot_of(members=(*ABC, "d"))
    wait(ballot, 4.0)
    assert ballot.hear("b", ("d",), AT_WORK, 4.0)
    assert wait(ballot, 4.0 + STALLED_S - TICK, 4.0) == []
    assert wait(ballot, 4.0 + STALLED_S + 2 * TICK, 4.0 + STALLED_S - TICK) != []
    assert ballot.suspects == {"c", "d"}


def test_what_a_node_slept_through_is_not_held_against_the_others():
    ballot = ballot_of()
    wait(ballot, 0.1)
    assert not ballot.pass_time(9.0, ABC, ())  # their votes may be there, but not read yet
    assert not ballot.hear("b", (), AT_WORK, 9.0)
    assert not ballot.hear("c", (), AT_WORK, 9.0)
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
    seen = Stand(entered=True, ready=True, seen=frozenset("c"))
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


# Laws, in simulated networks


def times(rng, names, share, most_s):
    return {name: rng.uniform(0.0, most_s) for name in names if rng.random() < share}


def schedule_of(rng, stops_s=(), delay_s=MAX_DELAY_S, stretch=1.0):
    """Draw what happens; with lengths of stops, anybody may be killed, stopped, late or slow."""
    names = tuple("abcdef"[: rng.randint(1, 6)])
    enters, works = times(rng, names, 1.0, 0.15), times(rng, names, 1.0, 0.15)
    if not stops_s:
        return Schedule(names, 1.0, enters, works)
    timeout_s = rng.choice([0.2, 0.5, 1.0]) * stretch
    works |= times(rng, names, 0.1, 2 * timeout_s)
    enters |= times(rng, names, 0.1, 3 * timeout_s)
    for name in times(rng, names, 0.05, 0.0):
        del enters[name]
    faults = tuple(
        fault_of(rng, name, timeout_s, stops_s)
        for name in rng.sample(names, rng.randint(0, len(names)))
    )
    schedule = Schedule(names, timeout_s, enters, works, faults, delay_s)
    schedule.join_requests_s = times(rng, names, 0.2, 1.5)
    schedule.leaves_s = times(rng, names, 0.05, 1.5)
    schedule.awaits_the_ready = rng.random() < 0.5
    schedule.has_boards = rng.random() < 0.5
    return schedule


def fault_of(rng, name, timeout_s, stops_s):
    stop_s = None if rng.random() < 0.5 else rng.uniform(*rng.choice(stops_s))
    nth = rng.choice([1, 1, 2, 3, rng.randint(1, 15)])
    return Fault(name, rng.choice(MOMENTS), rng.uniform(0.0, timeout_s + 0.8), nth, stop_s)


def run(seed, **drawn):
    """Run one schedule to its end; check what holds whatever happens."""
    network = Network(schedule_of(random.Random(seed), **drawn), seed)
    network.run_until(IN_TIME_S)
    context = f"seed {seed}: {network.schedule}"
    check_that_nobody_hangs(network, context)
    check_that_results_are_of_all(network, context)
    check_that_none_of_a_pair_differs(network, context)
    return network, context


def after(network, decision):
    """What a node makes of its decision: whether there is a result, and the next view."""
    names = network.schedule.names
    view = GroupView(tuple(Member(name) for name in names))
    return decision.holds, view.after(0, decision.lost, decision.joiners, names)


def began_s(network, node):
    """When a node has voted or its time is over; `None` if neither was."""
    ends = [] if math.isinf(node.deadline) else [node.deadline]
    return max([*ends, *([] if node.voted_at is None else [node.voted_at])], default=None)


def check_that_nobody_hangs(network, context):
    for node in network.nodes.values():
        if node.name not in network.killed and began_s(network, node) is not None:
            assert node.is_over, f"{node.name} hangs, {context}"


def check_that_results_are_of_all(network, context):
    all_were_ready = all(node.name in node.ready for node in network.nodes.values())
    for node in network.nodes.values():
        if node.decision and node.decision.holds:
            assert all_were_ready, f"{node.name} has a result that is not of all, {context}"


def check_that_none_of_a_pair_differs(network, context):
    """Two nodes that both go on, each with the other, have decided the same."""
    decided = [node for node in network.nodes.values() if node.decision]
    for one, other in itertools.combinations(decided, 2):
        if one.name not in other.decision.lost and other.name not in one.decision.lost:
            both = after(network, one.decision), after(network, other.decision)
            assert both[0] == both[1], f"{one.name} and {other.name} differ, {context}"


def check_that_survivors_agree(network, context):
    found = {
        after(network, node.decision)
        for node in network.nodes.values()
        if node.name not in network.killed and node.is_over and not node.is_left_behind
        if network.stopped_s.get(node.name, 0.0) <= SHORT_STOP_S
    }
    assert len(found) <= 1, f"survivors differ: {found}, {context}"


def check_that_who_is_well_is_not_lost(network, longest_stop_s, context):
    nodes = network.nodes.values()
    lost = {name for node in nodes if node.decision for name in node.decision.lost}
    for node in nodes:
        is_well = network.stopped_s.get(node.name, 0.0) <= longest_stop_s
        is_here = node.name not in network.killed and not node.has_left
        if is_well and is_here and node.name in node.entered:
            assert node.name not in lost, f"{node.name} was lost, {context}"
            assert not node.is_left_behind, f"{node.name} was left behind, {context}"


def check_that_it_ends_in_time(network, context):
    """Everybody who dies, leaves or sleeps may cost a round, and sleep its length."""
    schedule = network.schedule
    rounds = 1 + len(network.killed) + len(network.stopped_s) + len(schedule.leaves_s)
    patience_s = STALLED_S if network.silent or network.stopped_s else LATE_S
    most_s = rounds * (patience_s + ROUND_S) + sum(network.stopped_s.values())
    for node in network.nodes.values():
        began = began_s(network, node)
        if node.name not in network.killed and began is not None:
            assert node.ended_at - began <= most_s, f"{node.name} ends late, {context}"


def check_laws(network, longest_stop_s, context):
    check_that_survivors_agree(network, context)
    check_that_who_is_well_is_not_lost(network, longest_stop_s, context)
    check_that_it_ends_in_time(network, context)


def test_without_faults_everybody_ends_normally():
    for seed in range(150):
        network, context = run(seed)
        for node in network.nodes.values():
            assert node.decision == Decision(holds=True), context
            assert node.ballot is None, context


def test_with_deaths_and_short_stops_who_is_alive_goes_on_with_all_who_are():
    for seed in range(400):
        network, context = run(seed, stops_s=[(0.0, SHORT_STOP_S)])
        check_laws(network, SHORT_STOP_S, context)


def test_with_time_left_who_is_stopped_for_less_than_the_stalled_time_is_not_lost():
    for seed in range(200):
        stops_s = [(0.0, SHORT_STOP_S), (0.0, LONG_STOP_S)]
        network, context = run(seed, stops_s=stops_s, stretch=20.0)
        check_that_who_is_well_is_not_lost(network, LONG_STOP_S, context)


def test_with_long_stops_those_who_were_awake_go_on_together():
    for seed in range(500):
        network, context = run(seed, stops_s=[(0.0, 0.5), (0.4, 0.8), (0.5, 3.0)])
        check_laws(network, 0.0, context)


@pytest.mark.parametrize("delay_s", [0.3, pytest.param(1.0, marks=pytest.mark.slow), 3.0])
def test_whatever_messages_take_two_who_go_on_together_have_decided_the_same(delay_s):
    results = set()
    for seed in range(400):
        network, _ = run(seed, stops_s=[(0.0, 3.0)], delay_s=delay_s)
        results |= {node.decision for node in network.nodes.values() if node.ballot}
    assert len({result.holds for result in results if result}) == 2  # the law was put to a test


def test_all_expire_at_the_same_moment():
    for seed in range(50):
        names = tuple("abcdef")
        works = dict.fromkeys(names, 0.0) | {"c": 9.0}
        network = Network(Schedule(names, 0.2, dict.fromkeys(names, 0.0), works), seed)
        network.run_until(IN_TIME_S)
        found = {node.decision for node in network.nodes.values()}
        assert found == {Decision(holds=False)}, f"seed {seed}"


def test_when_all_sleep_at_the_same_moment_nobody_is_lost():
    for seed in range(100):
        names = tuple("abcd")
        works = dict.fromkeys(names, 0.0) | {"c": 9.0}
        at_s = 0.2 + random.Random(seed).uniform(0.0, 0.1)
        faults = tuple(Fault(name, "time", at_s, 1, 5.0) for name in names)
        schedule = Schedule(names, 0.2, dict.fromkeys(names, 0.0), works, faults)
        network = Network(schedule, seed)
        network.run_until(IN_TIME_S)
        found = {node.decision for node in network.nodes.values()}
        assert found == {Decision(holds=False)}, f"seed {seed}: {found}"
