"""Which members answer, who is asked for those that do not, and when a node doubts itself."""

import random

import pytest

from dpwa.policy.members.records import LocalHealth, Probe
from dpwa.policy.members.states import MemberEntry, MemberStatus, Times
from dpwa.policy.members.view import Membership

TIMES = Times()


def view(count):
    members = Membership(MemberEntry("self", "at-self", 1))
    members.receive_entries(
        [MemberEntry(f"n{index}", f"at-n{index}", 1) for index in range(count)], 0.0
    )
    return members


def tick(members, since, until):
    """Let time pass as it does; who is suspected at the end of it."""
    steps = int(2 * (until - since))
    changes = [change for step in range(steps + 1) for change in members.tick(since + step / 2)]
    return [c.entry.name for c in changes if c.after is MemberStatus.SUSPECT]


def test_a_member_that_does_not_answer_is_asked_through_a_few_others_once():
    members, rng = view(50), random.Random(1)
    members.asked("n7", 0.0)
    assert members.to_ask_others(TIMES.ask_others_after_s - 0.01, rng) == []
    asked = members.to_ask_others(TIMES.ask_others_after_s, rng)
    assert [entry.name for entry, _ in asked] == ["n7"] * 3
    assert len({other for _, other in asked} - {"n7"}) == 3
    assert members.to_ask_others(TIMES.ask_others_after_s + 1.0, rng) == []


def test_of_many_that_do_not_answer_a_few_are_asked_for_at_a_time_through_those_who_do():
    members, rng, asked = view(50), random.Random(1), []
    for index in range(40):
        members.asked(f"n{index}", 0.0)
    for _ in range(14):
        now = members.to_ask_others(TIMES.ask_others_after_s, rng)
        assert len(now) <= 9
        asked += now
    assert {entry.name for entry, _ in asked} == {f"n{index}" for index in range(40)}
    assert {int(other[1:]) for _, other in asked} <= set(range(40, 50))


def test_who_answers_another_is_not_suspected_and_is_asked_anew():
    members, rng = view(5), random.Random(1)
    members.asked("n1", 0.0)
    [(_, helper), *_] = members.to_ask_others(2.0, rng)
    members.others_heard_from("n1", 1, helper)
    assert tick(members, 0.0, 10.0) == []
    members.asked("n1", 10.0)
    assert members.to_ask_others(14.0, rng)  # it is given twice the time
    assert tick(members, 10.0, 17.5) == []
    assert tick(members, 18.0, 18.0) == ["n1"]


def test_who_answers_another_is_not_suspected_either_when_its_connection_is_given_up():
    members = view(5)
    members.asked("n1", 0.0)
    [(_, helper), *_] = members.to_ask_others(2.0, random.Random(1))
    members.others_heard_from("n1", 1, helper)
    assert members.lost("n1", 5.0) == []
    members.heard_from("n1", 1, 6.0)  # the way is there again
    assert [change.after for change in members.lost("n1", 7.0)] == [MemberStatus.SUSPECT]


@pytest.mark.parametrize("case", ["nobody asked", "another life", "who was not asked"])
def test_what_nobody_asked_for_or_of_another_life_is_no_answer(case):
    members, helper = view(5), "n2"
    members.asked("n1", 0.0)
    if case != "nobody asked":
        asked = {other for _, other in members.to_ask_others(2.0, random.Random(1))}
        [other] = {"n0", "n2", "n3", "n4"} - asked
        helper = other if case == "who was not asked" else min(asked)
    members.others_heard_from("n1", 2 if case == "another life" else 1, helper)
    assert tick(members, 0.0, 4.0) == ["n1"]


def test_members_that_vanish_together_are_suspected_together():
    members = view(3)
    members.asked("n0", 0.0)
    members.asked("n1", 0.0)
    assert tick(members, 0.0, 4.0) == ["n0", "n1"]


def test_a_node_whose_questions_stay_unanswered_gives_all_more_time_until_they_are_answered():
    health, probe = LocalHealth(), Probe()
    probe.asked(0.0)
    assert probe.is_silent(4.0, TIMES.suspect_after_s, health)
    for _ in range(9):
        health.worse()
    assert health.factor == health.most
    assert not probe.is_silent(7.9, TIMES.suspect_after_s, health)
    assert probe.is_silent(8.0, TIMES.suspect_after_s, health)
    for _ in range(9):
        health.better()
    assert health.factor == 1


def test_a_node_that_hears_it_is_suspected_gives_others_more_time():
    members = view(3)
    members.asked("n1", 0.0)
    members.receive_entries([MemberEntry("self", "at-self", 1, 0, MemberStatus.SUSPECT)], 1.0)
    assert tick(members, 1.0, 7.5) == []
    assert tick(members, 8.0, 8.0) == ["n1"]


def test_patience_and_health_do_not_multiply():
    health, probe = LocalHealth(factor=4), Probe(patience=8)
    probe.asked(0.0)
    assert not probe.is_silent(31.9, TIMES.suspect_after_s, health)
    assert probe.is_silent(32.0, TIMES.suspect_after_s, health)


def test_of_many_those_that_are_connected_are_asked_and_told_before_others():
    members, rng = view(100), random.Random(1)
    members.near = {f"n{index}" for index in range(8)}
    told = [entry.name for _ in range(200) for entry in members.to_tell(rng, 3)]
    near = sum(name in members.near for name in told)
    assert 0.7 * len(told) < near < 0.9 * len(told)
    assert len(set(told)) > 50  # and nobody is left out for ever
    asked = []
    for step in range(200):
        for entry in members.to_ask(step / 2, rng):
            asked.append(entry.name)
            members.heard_from(entry.name, 1, step / 2)
    assert 0.7 * len(asked) < sum(name in members.near for name in asked) < 0.9 * len(asked)
