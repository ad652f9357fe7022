import random

import pytest

from dpwa.tables.barriers import Barriers
from dpwa.tables.directory import Told


class Members:
    """The barriers of several members, and what they tell each other, in the order told."""

    def __init__(self, *names):
        self.barriers, self.under_way, self.now = {}, [], 0.0
        for name in names:
            self.join(name)

    def join(self, name):
        """Let a member come, or come again; a view begins."""
        self.barriers[name] = Barriers(name, lambda item: self.under_way.append((name, item)))
        self.begin()

    def leave(self, name):
        del self.barriers[name]
        self.begin()

    def begin(self):
        self.under_way.clear()
        told = {n: Told({}, b.known, b.is_waiting) for n, b in self.barriers.items()}
        for barriers in self.barriers.values():
            barriers.begin_view(told)

    def settle(self):
        """Deliver everything; return who has passed."""
        passed = []
        for _ in range(20):
            self.now += 1.0
            passed += [n for n, b in self.barriers.items() if b.advance(self.now)]
            while self.under_way:
                name, item = self.under_way.pop(0)
                for other, barriers in self.barriers.items():
                    if other != name:
                        barriers.record_passed(name, **item.fields)
        return sorted(passed)


def arrive(members, *names):
    for name in names:
        members.barriers[name].arrive(members.now)


def test_nobody_passes_before_all_are_there():
    members = Members("a", "b", "c")
    arrive(members, "a", "b")
    assert members.settle() == []
    arrive(members, "c")
    assert members.settle() == ["a", "b", "c"]


def test_who_has_passed_and_waits_again_does_not_pass_alone():
    members = Members("a", "b")
    arrive(members, "a", "b")
    members.settle()
    arrive(members, "a")
    assert members.settle() == []
    arrive(members, "b")
    assert members.settle() == ["a", "b"]


def test_whoever_is_gone_is_not_waited_for():
    members = Members("a", "b", "c")
    arrive(members, "a", "b")
    members.settle()
    members.leave("c")
    assert members.settle() == ["a", "b"]


def test_a_new_member_begins_where_the_others_are():
    members = Members("a", "b")
    for _ in range(3):
        arrive(members, "a", "b")
        members.settle()
    members.join("c")
    arrive(members, "a", "b")
    assert members.settle() == []
    arrive(members, "c")
    assert members.settle() == ["a", "b", "c"]


def test_who_gives_up_is_not_taken_for_waiting():
    members = Members("a", "b")
    arrive(members, "a")
    members.settle()
    members.barriers["a"].give_up()
    members.settle()
    arrive(members, "b")
    assert members.settle() == []


@pytest.mark.parametrize("seed", range(20))
def test_all_pass_as_often_whatever_happens_to_views(seed):
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"]
    members, rounds = Members(*names), dict.fromkeys(names, 0)
    while min(rounds.values()) < 10:
        name = rng.choice(names)
        if rng.random() < 0.1:
            members.begin()
        elif rounds[name] < 10 and not members.barriers[name].is_waiting:
            arrive(members, name)
            rounds[name] += 1
        if rng.random() < 0.5:
            members.settle()
        counts = [b.passed for b in members.barriers.values()]
        assert max(counts) - min(counts) <= 1
    members.settle()
    assert {b.passed for b in members.barriers.values()} == {10}
