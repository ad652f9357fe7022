"""`together`, beside the gradients: who publishes, and how a node out of pace is drawn in."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from dpwa.algorithms.together import MAX_TURNS, Together


def of(place, count, **more):
    rule = Together()
    rule.mates, rule.place = count - 1, place
    for name, value in more.items():
        setattr(rule, name, value)
    return rule


def publishers(rules, updates):
    view = SimpleNamespace(updates=updates, model="a model")
    return [rule.place for rule in rules if rule.publishes(view) is not None]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_those_in_pace_publish_in_turn_while_somebody_is_out_of_it(count):
    rules = [of(place, count, are_all_there=False) for place in range(count)]
    published = [publishers(rules, updates) for updates in range(MAX_TURNS * count)]
    assert all(published)  # there is something new after each update
    for place in range(count):
        turns = [updates for updates, places in enumerate(published) if place in places]
        gaps = {after - before for before, after in pairwise(turns)}
        assert gaps == {min(count, MAX_TURNS)}


def test_nobody_publishes_while_all_keep_pace_and_who_does_not_publishes_always():
    assert publishers([of(place, 3) for place in range(3)], 6) == []
    apart = of(0, 1, is_apart=True, are_all_there=False)
    assert [publishers([apart], updates) for updates in range(3)] == [[0]] * 3
