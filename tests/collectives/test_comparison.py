"""Which part of their state nodes compare in a step, and what they make of a difference."""

from dpwa.collectives.comparison import AGAIN_STEPS, EVERY_STEPS, MAX_TIMES, Comparison, difference


def differ(comparison, after):
    """Let so many steps pass, then a difference, after which all are made equal."""
    for _ in range(after):
        comparison.stepped()
    comparison.sample_state()
    comparison.note_difference()
    told = comparison.told()
    comparison.made_equal(comparison.history)
    return told


def digest_of(comparison):
    comparison.sample_state()
    return comparison.digest()


def comparison():
    return Comparison(lambda turn: {"w": turn % EVERY_STEPS})


def test_nodes_with_the_same_history_give_the_same_digest():
    one, two = comparison(), comparison()
    assert digest_of(one) == digest_of(two) != b""
    one.stepped()
    assert digest_of(one) != digest_of(two)
    two.made_equal(one.history)
    assert digest_of(one) == digest_of(two)


def test_what_was_compared_is_told_after_a_difference_only():
    one = comparison()
    one.sample_state()
    assert one.told() == {}
    assert differ(one, 3) == {"w": 3}
    one.sample_state()
    assert one.told() == {}


def test_who_differs_again_and_again_is_compared_every_so_many_steps():
    one = comparison()
    for _ in range(MAX_TIMES):
        assert not one.is_often
        differ(one, 2)
    assert one.is_often
    for _ in range(EVERY_STEPS):
        assert digest_of(one) == b""
        one.stepped()
    assert digest_of(one) != b""


def test_differences_far_from_each_other_are_not_often():
    one = comparison()
    for _ in range(3 * MAX_TIMES):
        differ(one, AGAIN_STEPS)
    assert not one.is_often


def test_the_fewest_are_odd_or_all():
    assert difference({"a": {"w": 1}, "b": {"w": 1}, "late": {}}) is None
    assert difference({"a": {}, "b": {}}) is None
    found = difference({"a": {"v": 1, "w": 1}, "b": {"v": 1, "w": 2}, "c": {"v": 1, "w": 1}})
    assert found == (["w"], ["b"])
    assert difference({"a": {"w": 1}, "b": {"w": 2}}) == (["w"], ["a", "b"])
    four = {"a": {"w": 1}, "b": {"w": 2}, "c": {"w": 1}, "d": {"w": 2}}
    assert difference(four) == (["w"], ["a", "b", "c", "d"])
