"""Membership: the table, and each rule by hand.

Whole clusters are in `tests/campaigns/cases/`: members, churn and partition.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.members.records import FEW_REMEMBERED, TRIED_EVERY_S
from dpwa.policy.members.states import (
    HIGHEST,
    HIGHEST_HEARSAY,
    Event,
    MemberEntry,
    MemberStatus,
    Times,
    after,
    news_event,
)
from dpwa.policy.members.view import CHECK_WITHIN_S, Membership

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus
TIMES = Times()
SUSPECT_S, DEAD_S = TIMES.suspect_after_s, TIMES.dead_after_s
NAMES = ("a", "b", "c", "d")


def entry(name="x", status=ALIVE, version=0, incarnation=1, endpoint=None):
    return MemberEntry(name, endpoint or f"at-{name}", incarnation, version, status)


def view(*news, own="me", most=4096, times=TIMES, incarnation=1):
    members = Membership(entry(own, incarnation=incarnation), times, most)
    members.receive_entries(news, 0.0)
    return members


def check(members, *living, now=0.0):
    """Call whom claims are about, where these live; all changes."""
    there = {e.endpoint: e for e in living}
    changes = []
    for claim in members.to_check(now, rng()):
        found = there.get(claim.endpoint)
        is_it = found is not None and found.name == claim.name
        changes += members.checked(claim, found.incarnation if is_it else None, now)
    return changes


def rng(seed=1):
    return random.Random(seed)


def tick_until(members, end_s, since_s=0.0, step_s=0.5):
    """Let time pass in steps; all changes, with their times."""
    changes = []
    for step in range(1, round((end_s - since_s) / step_s) + 1):
        now = since_s + step * step_s
        changes += [(now, change) for change in members.tick(now)]
    return changes


def statuses(changes):
    return [(now, change.before, change.after) for now, change in changes]


def names(entries):
    return [e.name for e in entries]


def status_of(members, name="x"):
    known = members.entry(name)
    return None if known is None else known.status


# The table

STATUSES = (None, ALIVE, SUSPECT, DEAD, LEFT)
NEWS = [
    *(("newer", status) for status in MemberStatus),
    *(("same", status) for status in MemberStatus),
    *(("older", status) for status in MemberStatus),
]


def is_doubt(status):
    return status in (SUSPECT, DEAD)


def expected_after_news(age, told, known):
    """What news makes of a status, said in other words than the table."""
    if known is None:  # never heard of (all is newer), or there is a tombstone of this version
        return told if age == "newer" and told.is_member else None
    if age == "older" or (told is ALIVE and age == "same"):
        return known
    if told in (ALIVE, LEFT):
        return told
    if told is SUSPECT and age == "newer":
        return SUSPECT
    if known.is_member:
        return SUSPECT
    return DEAD if age == "newer" else known


def view_that_knows(status):
    """A view in which x has a status, of version 5; `None` is a tombstone."""
    if status is None:
        return view(entry(status=DEAD, version=5))
    members = view(entry(version=5))
    if status is LEFT:
        members.receive_entries([entry(status=LEFT, version=5)], 0.0)
    if status in (SUSPECT, DEAD):
        members.lost("x", 0.0)
    if status is DEAD:
        tick_until(members, DEAD_S)
    assert status_of(members) is status
    return members


@pytest.mark.parametrize("known", STATUSES)
@pytest.mark.parametrize(("age", "told"), NEWS)
def test_what_news_makes_of_each_status(age, told, known):
    members = view_that_knows(known)
    version = {"newer": 6, "same": 5, "older": 4}[age]
    changes = members.receive_entries([entry(status=told, version=version)], DEAD_S)
    expected = expected_after_news(age, told, known)
    assert status_of(members) is expected
    has_changed = expected is not known or (age == "newer" and known is not None)
    assert [(c.before, c.after) for c in changes] == [(known, expected)] * has_changed


@pytest.mark.parametrize("told", MemberStatus)
def test_news_of_a_node_never_heard_of(told):
    members = view(entry(status=told))
    assert status_of(members) is (told if told.is_member else None)
    # Of who was never known and is gone, a tombstone keeps older news away.
    assert status_of_after(members, entry()) is (told if told.is_member else None)
    assert status_of_after(members, entry(version=1)) is ALIVE


def status_of_after(members, news):
    members.receive_entries([news], 0.0)
    return status_of(members)


@pytest.mark.parametrize("status", STATUSES)
def test_what_each_other_event_makes_of_each_status(status):
    members = view_that_knows(status)
    members.heard_from("x", 1, DEAD_S)
    assert status_of(members) is status

    members = view_that_knows(status)
    members.lost("x", DEAD_S)
    assert status_of(members) is (SUSPECT if status is ALIVE else status)

    members = view_that_knows(status)
    tick_until(members, 3 * DEAD_S)
    assert status_of(members) is (DEAD if status is SUSPECT else status)

    members = view_that_knows(status)
    members.tick(TIMES.remember_s + DEAD_S)
    assert status_of(members) is {ALIVE: ALIVE, SUSPECT: DEAD}.get(status)


def test_the_table_has_an_answer_to_everything_and_keeps_to_the_rules():
    for event, status in itertools.product(Event, STATUSES):
        then = after(event, status)
        assert then is None or then in MemberStatus
        if status in (DEAD, LEFT):  # only its own, newer word brings a node back
            newer = (Event.NEWER_ALIVE, Event.NEWER_SUSPECT)
            assert event in newer or then is None or not then.is_member
        if status is not None and then is None:
            assert event is Event.TIME_TO_FORGET
        if then is DEAD and status is not DEAD:  # nobody but this node itself declares a death
            assert event is Event.SUSPICION_TIMED_OUT or status is LEFT


def test_news_is_ordered_by_incarnation_then_version():
    known = entry(incarnation=2, version=3)
    assert news_event(entry(incarnation=3, version=0), known) is Event.NEWER_ALIVE
    assert news_event(entry(incarnation=2, version=4), known) is Event.NEWER_ALIVE
    assert news_event(known, known) is Event.SAME_ALIVE
    assert news_event(entry(incarnation=2, version=2, status=LEFT), known) is None
    assert news_event(entry(incarnation=1, version=9, status=LEFT), known) is None
    assert news_event(entry(), None) is Event.NEWER_ALIVE


# Order, duplicates and delays of news

told_of_some = st.lists(
    st.builds(
        entry,
        name=st.sampled_from(NAMES),
        status=st.sampled_from(MemberStatus),
        version=st.integers(0, 3),
        incarnation=st.integers(0, 2),
    ),
    min_size=1,
)


def living_after(told):
    """Who lives, if all of this was true when it was said: no one has said more of it since."""
    living = []
    for name in {news.name for news in told}:
        stamp = max(news.stamp for news in told if news.name == name)
        last = {news.status for news in told if (news.name, news.stamp) == (name, stamp)}
        if last == {ALIVE}:
            living.append(entry(name, ALIVE, stamp[1], stamp[0]))
    return living


@given(st.data(), told_of_some)
def test_after_any_order_and_repetition_of_news_the_same_are_members(data, told):
    repeated = told + data.draw(st.lists(st.sampled_from(told)))
    living = living_after(told)
    members = view()
    for news in data.draw(st.permutations(repeated)):
        members.receive_entries([news], 0.0)
        check(members, *living)
    for life in range(1, 4):  # each of the dead is found out, and told of again
        begins = 1e4 * life
        for news in repeated:
            begins += 10.0
            members.receive_entries([news], begins)
            check(members, *living, now=begins)
        for known in members.peers:
            if not any(each.name == known.name for each in living):
                members.lost(known.name, begins)
        tick_until(members, begins + 2 * DEAD_S, begins)
    assert {e.name: e.stamp for e in members.peers} == {e.name: e.stamp for e in living}


@given(told_of_some)
def test_hearing_something_twice_changes_nothing(told):
    members = view()
    for index, news in enumerate(2 * told):
        now = 10.0 * index
        members.receive_entries([news], now)
        check(members, *living_after(told), now=now)
    before = members.digest(), members.peers, members.remembered
    for news in told:
        assert members.receive_entries([news], 0.0) == []
    assert before == (members.digest(), members.peers, members.remembered)


# What a node hears of itself


@pytest.mark.parametrize("status", [SUSPECT, DEAD, LEFT])
@pytest.mark.parametrize("version", [0, 7])
def test_a_node_contradicts_what_is_said_of_it_with_a_higher_version(status, version):
    members = view()
    changes = members.receive_entries([entry("me", status, version)], 0.0)
    assert members.own == entry("me", version=version + 1)
    assert [(c.entry, c.before, c.after) for c in changes] == [(members.own, ALIVE, ALIVE)]
    assert members.receive_entries([entry("me", status, version)], 0.0) == []


def test_a_node_contradicts_another_endpoint_and_a_version_that_it_never_had():
    members = view()
    members.receive_entries([entry("me", endpoint="elsewhere")], 0.0)
    assert members.own == entry("me", version=1)
    members.receive_entries([entry("me", version=5)], 0.0)
    assert members.own == entry("me", version=6)


def test_what_is_said_of_an_earlier_life_is_ignored():
    members = view(incarnation=5)
    assert members.receive_entries([entry("me", DEAD, version=9, incarnation=4)], 0.0) == []
    assert members.receive_entries([members.own], 0.0) == []
    assert members.own.version == 0


def test_a_later_process_of_the_name_elsewhere_replaces_this_one_for_good():
    members = view()
    other = entry("me", incarnation=2, endpoint="elsewhere")
    assert members.receive_entries([other], 0.0) == []
    changes = check(members, other)
    assert [(c.entry, c.before, c.after) for c in changes] == [(other, ALIVE, None)]
    assert members.replaced_by == other
    assert members.to_check(100.0, rng()) == []
    assert (
        members.receive_entries([other, other._replace(status=DEAD), entry("me", DEAD)], 0.0) == []
    )
    assert members.own == entry("me")


def test_of_two_processes_that_began_in_the_same_millisecond_one_gives_way():
    one, other = view(), Membership(entry("me", endpoint="elsewhere"))
    one.receive_entries([other.own], 0.0)
    assert one.own == entry("me", version=1)
    other.receive_entries([one.own], 0.0)
    check(other, one.own)
    assert other.own == entry("me", incarnation=2, endpoint="elsewhere")
    one.receive_entries([other.own], 0.0)
    check(one, other.own)
    assert one.replaced_by == other.own
    assert other.receive_entries([one.own], 0.0) == []


@pytest.mark.parametrize(
    "earlier",
    [
        entry("me", incarnation=9),
        entry("me", SUSPECT, incarnation=9),
        entry("me", DEAD, incarnation=9, endpoint="elsewhere"),
        entry("me", LEFT, incarnation=9, endpoint="elsewhere"),
    ],
)
def test_an_earlier_life_whose_clock_was_ahead_is_outlived(earlier):
    members = view()
    (change,) = members.receive_entries([earlier], 0.0)
    assert members.replaced_by is None
    assert members.own == change.entry == entry("me", incarnation=10)


@pytest.mark.parametrize("incarnation", [9, HIGHEST_HEARSAY, HIGHEST])
@pytest.mark.parametrize("status", MemberStatus)
def test_a_forged_life_of_a_node_elsewhere_does_not_put_it_out(status, incarnation):
    members, lie = view(), entry("me", status, 3, incarnation, endpoint="elsewhere")
    members.receive_entries([lie], 0.0)
    check(members, members.own)
    assert members.replaced_by is None
    is_believed = incarnation <= HIGHEST_HEARSAY
    assert members.own == entry("me", incarnation=incarnation + 1 if is_believed else 1)


def test_a_node_that_calls_itself_by_another_address_is_not_replaced_by_itself():
    members, alias = view(), "also-me"
    members.receive_entries([entry("me", version=7, endpoint=alias)], 0.0)
    check(members, entry("me", endpoint=alias))
    assert members.replaced_by is None
    assert members.own == entry("me", incarnation=2)


@pytest.mark.parametrize("number", [HIGHEST_HEARSAY, HIGHEST])
def test_there_is_always_room_to_contradict(number):
    """Whatever is said of x, others take it for what it says itself once they have called it."""
    x = view(own="x")
    knows_x, never_met_x = view(entry()), view(own="other")
    for step in range(20):
        now = 100.0 * step
        statuses_of_lies = [
            entry(status=s, version=HIGHEST, incarnation=number) for s in MemberStatus
        ]
        own = x.own
        for told in (*statuses_of_lies, own._replace(version=HIGHEST, status=DEAD)):
            for members in (x, knows_x, never_met_x):
                members.receive_entries([told], now)
                check(members, own, now=now)
        for members in (knows_x, never_met_x):
            members.receive_entries([x.own], now + 10.0)
            check(members, x.own, now=now + 10.0)
            assert members.peers == (x.own,)
    assert x.own.incarnation <= HIGHEST_HEARSAY + 100


def test_who_has_left_contradicts_nothing():
    members = view(entry())
    assert members.announce_leave() == entry("me", LEFT)
    assert members.receive_entries([entry("me", DEAD, version=4)], 0.0) == []
    assert members.select_entries(rng())[0] == entry("me", LEFT)
    other = view(entry("me"), own="x")
    assert [c.after for c in other.receive_entries(members.select_entries(rng()), 0.0)] == [LEFT]
    assert other.peers == other.remembered == ()


# Silence


def test_who_does_not_answer_is_suspected_then_dead_and_later_forgotten():
    members = view(entry(), times=Times(remember_s=20.0))
    members.asked("x", 1.0)
    changes = tick_until(members, 40.0)
    assert statuses(changes) == [
        (1.0 + SUSPECT_S, ALIVE, SUSPECT),
        (1.0 + SUSPECT_S + DEAD_S, SUSPECT, DEAD),
        (1.0 + SUSPECT_S + DEAD_S + 20.0, DEAD, None),
    ]
    assert members.remembered == ()


def test_suspects_are_peers_and_the_dead_are_remembered():
    members = view(entry("a"), entry("b", SUSPECT))
    assert names(members.peers) == ["a", "b"]
    assert members.remembered == ()
    tick_until(members, DEAD_S)
    assert names(members.peers) == ["a"]
    assert names(members.remembered) == ["b"]
    assert members.remembered


def test_who_was_not_asked_is_not_suspected():
    assert tick_until(view(entry()), 100.0) == []


@pytest.mark.parametrize("silence_s", [2.0, 3.5])
def test_a_peer_that_answers_late_under_load_is_not_suspected(silence_s):
    members = view(entry())
    for question in range(10):
        now = question * silence_s
        members.asked("x", now)
        members.asked("x", now + silence_s / 2)
        assert tick_until(members, now + silence_s, since_s=now) == []
        members.heard_from("x", 1, now + silence_s)


def test_a_lost_connection_is_a_suspicion_at_once():
    members = view(entry())
    assert [c.after for c in members.lost("x", 1.0)] == [SUSPECT]
    assert members.lost("x", 1.0) == members.lost("nobody", 1.0) == []
    assert statuses(tick_until(members, 10.0, 1.0)) == [(1.0 + DEAD_S, SUSPECT, DEAD)]


def test_a_sign_of_life_gives_a_suspect_fresh_time_and_is_no_contradiction():
    members = view(entry())
    members.lost("x", 0.0)
    members.heard_from("x", 1, 2.0)
    assert status_of(members) is SUSPECT  # or the views of others could never agree with this one
    assert members.select_entries(rng(), to="x")[1].status is SUSPECT
    assert statuses(tick_until(members, 10.0)) == [(2.0 + DEAD_S, SUSPECT, DEAD)]


def test_signs_of_life_of_another_process_do_not_count():
    members = view(entry(incarnation=2))
    members.asked("x", 0.0)
    members.heard_from("x", 1, 3.0)
    members.heard_from("nobody", 1, 3.0)
    assert statuses(tick_until(members, SUSPECT_S)) == [(SUSPECT_S, ALIVE, SUSPECT)]


def test_the_dead_come_back_by_their_own_word_only():
    members = view_that_knows(DEAD)
    members.heard_from("x", 1, 10.0)
    assert members.receive_entries([entry(version=5)], 10.0) == []
    assert status_of(members) is DEAD
    x = view(own="x")
    x.receive_entries(members.select_entries(rng(), to="x"), 10.0)
    (back,) = [
        c for c in members.receive_entries(x.select_entries(rng()), 10.0) if c.entry.name == "x"
    ]
    assert (back.before, back.after) == (DEAD, ALIVE)


def test_a_restarted_node_replaces_itself_at_once():
    members = view_that_knows(SUSPECT)
    restarted = entry(incarnation=2, endpoint="elsewhere")
    assert members.receive_entries([restarted], 0.0) == []
    (change,) = check(members, restarted)
    assert (change.entry, change.before, change.after) == (restarted, SUSPECT, ALIVE)
    assert members.receive_entries([entry(status=LEFT, version=99)], 0.0) == []
    assert members.peers == (restarted,)
    assert tick_until(members, 100.0) == []


def test_nothing_is_held_against_a_restarted_node():
    members = view(entry())
    members.lost("x", 0.0)
    members.receive_entries([entry(version=1)], 0.0)
    members.asked("x", 0.0)
    members.believe(entry(incarnation=2), 0.0)
    assert tick_until(members, 100.0) == []
    assert [change.after for change in members.lost("x", 100.0)] == [SUSPECT]


def test_a_suspicion_of_a_later_version_has_its_own_time():
    members = view(entry(status=SUSPECT))
    members.receive_entries([entry(status=SUSPECT, version=1)], 2.0)
    assert statuses(tick_until(members, 10.0)) == [(2.0 + DEAD_S, SUSPECT, DEAD)]


def test_another_endpoint_is_believed_with_a_newer_version_only():
    members, moved = view(entry()), entry(version=1, endpoint="elsewhere")
    members.receive_entries([entry(status=SUSPECT, endpoint="elsewhere")], 0.0)
    assert members.peers == (entry(status=SUSPECT),)
    members.receive_entries([moved], 0.0)
    check(members, moved)
    assert members.peers == (moved,)


# Claims


@pytest.mark.parametrize("known", [ALIVE, SUSPECT])
@pytest.mark.parametrize(
    "lie",
    [
        entry(incarnation=2),
        entry(incarnation=HIGHEST),
        entry(version=1, endpoint="elsewhere"),
        *(entry("x", status, 3, HIGHEST_HEARSAY, "elsewhere") for status in MemberStatus),
    ],
)
def test_a_forged_life_of_a_member_changes_nothing_if_nobody_answers_there(known, lie):
    members = view(entry(status=known))
    assert members.receive_entries([lie], 0.0) == []
    assert check(members, entry()) == []
    assert members.peers == (entry(status=known),)


def test_a_claim_is_believed_if_another_life_answers_there_that_is_as_late():
    members, claim = view(entry()), entry(incarnation=5, endpoint="elsewhere")
    for found in (4, None):
        members.receive_entries([claim], 0.0)
        assert members.checked(claim, found, 0.0) == []
    assert [c.entry for c in members.checked(claim, 6, 0.0)] == [claim]


def test_a_claim_that_is_repeated_is_checked_now_and_then():
    members, calls = view(entry()), 0
    for step in range(1000):
        now = step * 0.01
        members.receive_entries([entry(incarnation=2 + step)], now)
        claims = members.to_check(now, rng())
        calls += len(claims)
        assert all(members.checked(claim, None, now) == [] for claim in claims)
    assert 5 <= calls <= 10


def test_a_claim_that_nobody_could_be_called_for_is_taken_up_again():
    members, claim = view(entry()), entry(incarnation=2)
    for now in (0.0, 0.1):
        members.receive_entries([claim], now)
        assert members.to_check(now, rng()) == [claim]
        members.unchecked(claim)
    members.receive_entries([claim], 1.0)
    assert members.to_check(1.0, rng()) == [claim]
    assert members.to_check(1.0, rng()) == []
    members.receive_entries([claim], 1.0 + CHECK_WITHIN_S)  # no answer ever came
    assert members.to_check(1.0 + CHECK_WITHIN_S, rng()) == [claim]


def test_of_the_dead_a_later_life_is_believed_at_once():
    members = view_that_knows(DEAD)
    restarted = entry(incarnation=2, endpoint="elsewhere")
    assert [c.after for c in members.receive_entries([restarted], DEAD_S)] == [ALIVE]


def test_who_is_doubted_is_suspected_whatever_it_has_contradicted_before():
    members = view(entry())
    members.lost("x", 0.0)
    members.receive_entries([entry(version=1)], 0.5)
    assert members.lost("x", 1.0) == []
    assert [c.after for c in members.doubt("x", 1.0)] == [SUSPECT]
    assert members.doubt("x", 1.0) == members.doubt("nobody", 1.0) == []


def test_where_only_the_link_is_broken_suspicions_become_rare():
    members = view(entry())
    version, suspected_at = 0, []
    for step in range(1, 400):
        now = step * 0.5
        members.asked("x", now)
        if any(change.after is SUSPECT for change in members.tick(now)):
            suspected_at.append(now)
            version += 1
            members.receive_entries([entry(version=version)], now)  # by way of others
    pauses = [later - sooner for sooner, later in itertools.pairwise([0.5, *suspected_at])]
    # The next question is asked half a second after the contradiction.
    assert pauses[0] == SUSPECT_S
    assert pauses[1:5] == [0.5 + SUSPECT_S * factor for factor in (2, 4, 8, 8)]
    assert members.lost("x", 200.0) == []
    members.heard_from("x", 1, 200.0)
    assert [change.after for change in members.lost("x", 200.0)] == [SUSPECT]


def test_a_sleeper_accuses_nobody():
    members = view(entry("a"), entry("b"))
    tick_until(members, 1.0)
    members.asked("a", 1.0)
    members.lost("b", 1.0)
    woke_at = 1.0 + 100.0
    members.woke(woke_at)
    assert members.tick(woke_at) == []
    assert statuses(tick_until(members, woke_at + 50.0, woke_at)) == [
        (woke_at + DEAD_S, SUSPECT, DEAD)
    ]


# Tombstones


def test_old_news_does_not_bring_back_whom_a_node_has_forgotten():
    members = view_that_knows(DEAD)
    members.tick(DEAD_S + TIMES.remember_s)
    assert members.entry("x") is None
    for status in MemberStatus:
        assert members.receive_entries([entry(version=5, status=status)], 5000.0) == []
    assert members.peers == ()
    assert [c.after for c in members.receive_entries([entry(version=6)], 5000.0)] == [ALIVE]


def test_who_is_buried_and_lives_is_told_so():
    members = view_that_knows(DEAD)
    members.tick(DEAD_S + TIMES.remember_s)
    x = view(own="x")
    x.receive_entries(members.select_entries(rng(), to="x"), 0.0)
    assert x.own.version == 6
    assert names(c.entry for c in members.receive_entries([x.own], 4000.0)) == ["x"]
    assert names(members.select_entries(rng(), to="x")) == ["me", "x"]
    assert members.select_entries(rng(), to="x")[1] == x.own


def test_a_tombstone_does_not_last_for_ever():
    members = view(entry(status=DEAD))
    members.tick(TIMES.tombstone_s - 1.0)
    assert members.receive_entries([entry()], TIMES.tombstone_s) == []
    members.tick(TIMES.tombstone_s)
    assert [c.after for c in members.receive_entries([entry()], TIMES.tombstone_s)] == [ALIVE]


# What is passed on


def test_news_begins_with_the_node_itself_and_what_the_reader_must_contradict():
    members = view(*(entry(name) for name in NAMES), entry("x", SUSPECT))
    for seed in range(20):
        told = members.select_entries(rng(seed), most=3, to="x")
        assert told[:2] == (entry("me"), entry("x", SUSPECT))
        assert len(told) == len(set(names(told))) == 3
    assert members.select_entries(rng(), most=1) == (entry("me"),)


def test_what_has_changed_is_told_before_the_rest_a_number_of_times():
    many = [entry(f"n{index}") for index in range(63)]
    members = view(*many)
    for _ in range(100):
        members.select_entries(rng(), most=64)
    members.receive_entries([entry("n7", version=1)], 0.0)
    told = [members.select_entries(rng(seed), most=2)[1].name for seed in range(200)]
    times_first = next(index for index, name in enumerate(told) if name != "n7")
    assert times_first == 3 * 7  # 3 * the bits of 64 nodes
    assert len(set(told[times_first:])) > 40  # and then everybody has his turn


def test_members_are_told_before_those_who_are_gone():
    members = view(entry("a"), entry("b"), entry("c"))
    members.receive_entries([entry("a", LEFT)], 0.0)
    for _ in range(100):
        members.select_entries(rng())
    assert set(names(members.select_entries(rng(), most=3))) == {"me", "b", "c"}
    assert set(names(members.select_entries(rng()))) == {"me", "a", "b", "c"}


def test_digests_are_equal_for_equal_views_of_members():
    one, other = view(entry("x"), own="a"), view(entry("a"), own="x")
    assert one.digest() == other.digest()
    one.lost("x", 0.0)
    assert one.digest() != other.digest()
    other.receive_entries(one.select_entries(rng()), 0.0)
    one.receive_entries(other.select_entries(rng()), 0.0)
    assert one.digest() == other.digest()
    other.receive_entries([entry("gone", DEAD)], 0.0)
    assert one.digest() == other.digest()
    one.announce_leave()
    assert one.digest() != other.digest()
    other.receive_entries(one.select_entries(rng()), 0.0)
    assert one.digest() == other.digest()


# Whom to ask, and whom to try again


def test_silent_peers_are_asked_again_beside_one_that_is_drawn():
    members = view(*(entry(f"n{index}") for index in range(20)))
    assert view().to_ask(0.0, rng()) == []
    asked = set()
    for round_number in range(40):
        chosen = names(members.to_ask(round_number * 0.5, rng(round_number)))
        assert len(chosen) == len(set(chosen))
        assert 1 <= len(chosen) <= 4
        assert set(chosen) & asked or round_number == 0
        asked |= set(chosen)
    answered = view(*(entry(f"n{index}") for index in range(20)))
    for round_number in range(40):
        (chosen,) = answered.to_ask(round_number * 0.5, rng(round_number))
        answered.heard_from(chosen.name, 1, round_number * 0.5)


def trials(count, until_s):
    members = view(*(entry(f"n{index}") for index in range(count)))
    for index in range(count):
        members.lost(f"n{index}", 0.0)
    tick_until(members, DEAD_S)
    return [
        (step * 0.1 - DEAD_S, found.name)
        for step in range(round(10 * until_s))
        for found in members.to_retry(step * 0.1, rng(step))
    ]


@pytest.mark.parametrize(("count", "most_s"), [(1, 2.5), (FEW_REMEMBERED, 30.0)])
def test_the_dead_are_tried_again_after_longer_and_longer_pauses(count, most_s):
    times = [at for at, name in trials(count, 200.0) if name == "n0"]
    pauses = [later - sooner for sooner, later in itertools.pairwise([0.0, *times])]
    longest = [TIMES.retry_first_s, *(min(most_s, 2.0**power) for power in range(20))]
    for pause, most in zip(pauses, longest, strict=False):
        assert 0.5 * most - 0.11 <= pause <= most + 0.21 * count  # one after the other
    assert max(pauses) > 0.6 * most_s


def test_however_many_are_dead_few_are_tried_at_once_and_each_has_its_turn():
    found = trials(200, 100.0)
    counts = Counter(name for _, name in found)
    assert len(counts) == 200
    assert max(counts.values()) - min(counts.values()) <= 2
    assert len(found) <= 100.0 / TRIED_EVERY_S


def test_who_is_back_is_not_tried_again():
    members = view_that_knows(DEAD)
    members.receive_entries([entry(version=6)], DEAD_S)
    assert members.to_retry(100.0, rng()) == []


# Bounds


def test_no_more_nodes_are_kept_than_are_allowed_and_the_dead_make_room():
    members = view(entry("a"), entry("b"), entry("c"), most=3)
    assert members.receive_entries([entry("d")], 0.0) == []
    members.receive_entries([entry("b", LEFT)], 1.0)
    members.receive_entries([entry("c", LEFT)], 1.5)
    changes = members.receive_entries([entry("d")], 2.0)
    assert [(c.entry.name, c.after) for c in changes] == [("b", None), ("d", ALIVE)]
    members.receive_entries([entry("e")], 2.0)
    assert names(members.peers) == ["a", "d", "e"]
    assert members.receive_entries([entry("b"), entry("f")], 2.0) == []


def crowded(most=10):
    """A view full of nodes that were invented and have never answered, and one that has."""
    members = view(*(entry(f"n{index}") for index in range(most - 1)), entry("true"), most=most)
    members.heard_from("true", 1, 0.0)
    return members


def test_who_has_answered_takes_the_place_of_one_that_never_has():
    members = crowded()
    members.asked("n4", 0.5)
    changes = members.believe(entry("late"), 1.0)
    assert [(c.entry.name, c.after) for c in changes] == [("n4", None), ("late", ALIVE)]
    for index in range(8):
        members.believe(entry(f"more{index}"), 2.0)
    assert {"late", "true"} < set(names(members.peers))
    assert members.believe(entry("one too many"), 3.0) == []
    assert len(members.peers) == 10


def test_who_is_heard_of_in_a_crowd_is_called_and_let_in_once_it_answers():
    members = crowded()
    assert members.receive_entries([entry("late")], 1.0) == []
    assert names(members.to_check(1.0, rng())) == ["late"]
    assert [c.after for c in members.checked(entry("late"), 1, 1.1)] == [None, ALIVE]
    members.receive_entries([entry("liar")], 2.0)
    assert names(members.to_check(2.0, rng())) == ["liar"]
    assert members.checked(entry("liar"), None, 2.1) == []
    assert {"late", "true"} < set(names(members.peers))


def test_whoever_lost_its_place_may_come_again():
    members = crowded(most=2)
    members.believe(entry("late"), 1.0)
    assert names(members.peers) == ["late", "true"]
    assert members.believe(entry("n0"), 2.0) == []  # all have answered
    members.receive_entries([entry("late", LEFT)], 3.0)
    assert [c.after for c in members.believe(entry("n0"), 4.0)] == [None, ALIVE]


def test_a_true_node_comes_into_view_though_a_thousand_are_invented_every_second():
    members, random_, now, invented = view(most=255), rng(3), 0.0, 0

    def tick(*more):
        nonlocal now, invented
        now += 0.2  # as real nodes look
        invented += 200
        news = [entry(f"x{number}") for number in range(invented - 200, invented)]
        members.receive_entries([*news, *more], now)  # the true one is never the first
        members.tick(now)
        members.to_ask(now, random_)
        for claim in members.to_check(now, random_):
            members.checked(claim, 1 if claim.name == "true" else None, now)

    tick()
    tick()
    while "true" not in names(members.peers):
        tick(entry("true"))
        assert now < 60.0
    print(f"after {now} s")
    for _ in range(100):
        tick()
        members.heard_from("true", 1, now)
        assert "true" in names(members.peers)


def test_foreign_news_costs_no_more_than_is_allowed():
    members = view(most=10)
    endless = (entry(f"n{index}", LEFT) for index in itertools.count())
    assert members.receive_entries(endless, 0.0) == []
    assert next(endless).name == "n10"
    members.receive_entries([entry(f"m{index}", LEFT) for index in range(10)], 0.0)
    assert len(members._forgotten._entries) == 10
    assert [c.after for c in members.receive_entries([entry("n0")], 0.0)] == [
        ALIVE
    ]  # the oldest made room


@pytest.mark.parametrize("field", ["incarnation", "version"])
@pytest.mark.parametrize("number", [-1, HIGHEST + 1, 2**64])
def test_nonsense_is_ignored(field, number):
    members = view(entry(), entry("a"))
    for name in ("x", "me", "new"):
        assert members.receive_entries([entry(name, DEAD)._replace(**{field: number})], 0.0) == []
