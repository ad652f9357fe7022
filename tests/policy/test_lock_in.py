import random
from itertools import cycle, islice

from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.leaders import LockIn


def warnings(leaders, **options):
    """Each warning, with the number of the round after which it came."""
    lock_in = LockIn(**options)
    told = [(round_, lock_in.note(leader)) for round_, leader in enumerate(leaders, start=1)]
    return [(round_, warning) for round_, warning in told if warning is not None]


def test_it_warns_with_numbers_and_a_way_out():
    leaders = ["w1"] * 8 + ["w3"] * 367
    ((round_, warning),) = warnings(leaders)
    assert round_ == 100
    assert warning.startswith("w3 led 92 of the last 100 rounds (92 %): on private shards")
    assert warning.endswith("use a common validation batch for the leader's loss")


def test_fewer_than_100_rounds_say_nothing():
    assert warnings(["w3"] * 99) == []
    assert [round_ for round_, _ in warnings(["w3"] * 100)] == [100]


def test_a_share_of_exactly_the_limit_is_no_lock_in():
    assert warnings(["w1"] * 20 + ["w3"] * 80) == []
    assert [round_ for round_, _ in warnings(["w1"] * 20 + ["w3"] * 81)] == [101]


def test_it_warns_once_of_each_leader():
    leaders = ["w3"] * 400 + ["w5"] * 400 + ["w3"] * 400
    told = warnings(leaders)
    assert [(round_, warning[:2]) for round_, warning in told] == [(100, "w3"), (721, "w5")]


def test_what_is_older_than_the_window_does_not_count():
    leaders = ["w1"] * 50 + ["w2"] * 50 + ["w3"] * 400  # w3 leads 81 of the last 100 in round 181
    assert [round_ for round_, _ in warnings(leaders, window=100)] == [181]


def test_leaders_that_take_turns_are_fine():
    assert warnings(islice(cycle("abc"), 2_000)) == []


@given(st.integers(0, 2**32), st.floats(0.7, 0.9), st.integers(100, 150))
def test_it_warns_exactly_when_a_leader_first_has_more_than_its_share(seed, share_of_a, window):
    rng = random.Random(seed)
    leaders = ["a" if rng.random() < share_of_a else "b" for _ in range(400)]
    expected, seen = [], set()
    for round_, leader in enumerate(leaders, start=1):
        last = leaders[max(0, round_ - window) : round_]
        led, rounds = last.count(leader), len(last)
        if rounds >= 100 and led > 0.8 * rounds and leader not in seen:
            seen.add(leader)
            expected.append((round_, f"{leader} led {led} of the last {rounds} rounds"))
    told = warnings(leaders, window=window)
    assert [(round_, warning.split(" (")[0]) for round_, warning in told] == expected
