import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.token_buckets import FairBucket, TokenBucket

RATE, BURST = 100.0, 20.0

claims = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 60)), max_size=60)


def let_through(claims):
    """Return when which amounts were let through, of claims after so many seconds each."""
    bucket, now, taken = TokenBucket(RATE, BURST), 0.0, []
    for gap_s, amount in claims:
        now += gap_s
        after = bucket.taken(amount, now)
        if after is not None:
            bucket = after
            taken.append((now, amount))
    return taken


@given(claims)
def test_no_window_lets_more_through_than_the_rate_and_one_burst(claims):
    taken = let_through(claims)
    for first, (start, _) in enumerate(taken):
        total, largest = 0.0, BURST
        for now, amount in taken[first:]:
            total, largest = total + amount, max(largest, amount)
            assert total <= RATE * (now - start) + largest + 1e-6


@pytest.mark.parametrize("amount", [1.0, 20.0, 55.0])
def test_a_long_run_has_the_rate_whatever_the_amounts(amount):
    taken = let_through([(0.001, amount)] * 100_000)
    assert sum(amount for _, amount in taken) == pytest.approx(RATE * 100, rel=0.01)


def test_what_is_returned_can_be_taken_again():
    bucket = TokenBucket(RATE, BURST).taken(BURST, 0.0)
    assert bucket.taken(BURST, 0.0) is None
    assert bucket.returned(BURST).taken(BURST, 0.0) is not None


def shared(readers, seconds=10.0, step_s=0.02):
    """Let readers claim as much as they can; return what each was given.

    Args:
        readers: the amount that each claims at once, by name.
    """
    bucket, given_to, now = FairBucket(TokenBucket(RATE, BURST)), dict.fromkeys(readers, 0.0), 0.0
    while now < seconds:
        now += step_s
        for reader, amount in readers.items():
            while bucket.claim(reader, amount, now):
                given_to[reader] += amount
    return given_to


@given(st.lists(st.sampled_from([0.5, 1.0, 4.0, 16.0, 40.0]), min_size=1, max_size=6))
def test_readers_get_the_same_whatever_the_sizes_of_their_claims(amounts):
    given_to = shared({str(index): amount for index, amount in enumerate(amounts)})
    assert sum(given_to.values()) == pytest.approx(RATE * 10, abs=BURST + 2 * max(amounts))
    fair = RATE * 10 / len(amounts)
    for got in given_to.values():
        assert got == pytest.approx(fair, abs=BURST + 2 * max(amounts))


def test_a_claim_waits_for_few_even_if_new_readers_come_without_end():
    bucket, now = FairBucket(TokenBucket(RATE, BURST)), 0.0
    assert bucket.claim("old", 10.0, now)
    given_to_others = 0
    for number in range(10_000):
        now += 0.001
        if bucket.claim("old", 10.0, now):
            break
        given_to_others += bucket.claim(f"new {number}", 1.0, now)
    assert given_to_others <= 11 + BURST


def test_nobody_waits_for_a_reader_that_has_given_up():
    bucket = FairBucket(TokenBucket(RATE, BURST))
    assert bucket.claim("a", 20.0, 0.0)
    assert not bucket.claim("gone", 1.0, 0.0)
    assert not bucket.claim("a", 10.0, 0.2)  # its turn, if it comes
    assert bucket.claim("a", 10.0, 0.3)


abandoned = st.lists(st.tuples(st.integers(0, 500), st.floats(0.01, 60)), max_size=200)


@given(abandoned, st.sampled_from([1.0, 16.0, 40.0]))
def test_readers_that_end_take_nothing_from_those_who_stay(abandoned, amount):
    """Of names without number, each claims once, whenever it likes, and ends."""
    bucket, given_to, now, largest = FairBucket(TokenBucket(RATE, BURST)), 0.0, 0.0, amount
    ending = {}
    for index, (step, wanted) in enumerate(abandoned):
        ending.setdefault(step, []).append((f"name {index}", wanted))
    for step in range(501):
        now += 0.02
        for name, wanted in ending.get(step, ()):
            if bucket.claim(name, wanted, now):
                bucket.give_back(wanted)
            bucket.forget_reader(name)
        while bucket.claim("stays", amount, now):
            given_to += amount
    assert given_to >= RATE * now - largest


@given(abandoned)
def test_who_ends_without_a_word_holds_up_the_others_for_a_bounded_time(abandoned):
    bucket, given_to, now = FairBucket(TokenBucket(RATE, BURST)), 0.0, 0.0
    steps, held_up = dict(abandoned), set()
    for step in range(501):
        now += 0.02
        if step in steps:
            if bucket.claim(f"name {step}", steps[step], now):
                bucket.give_back(steps[step])
            held_up.update(range(step, step + round(FairBucket.PATIENCE_S / 0.02) + 1))
        while bucket.claim("stays", 1.0, now):
            given_to += 1.0
    assert given_to >= RATE * (now - 0.02 * len(held_up)) - 1.0


def test_a_reader_that_is_forgotten_and_comes_back_stands_at_the_end():
    bucket = FairBucket(TokenBucket(RATE, BURST))
    assert bucket.claim("a", 20.0, 0.0)
    assert not bucket.claim("b", 1.0, 0.0)
    assert not bucket.claim("c", 2.0, 0.1)
    bucket.forget_reader("b")
    bucket.forget_reader("unknown")
    assert bucket.claim("c", 2.0, 0.1)
    assert bucket.claim("b", 1.0, 0.1)


def test_a_lone_reader_has_all_of_it_and_gains_nothing_by_waiting():
    bucket = FairBucket(TokenBucket(RATE, BURST))
    assert bucket.claim("a", 20.0, 100.0)
    assert not bucket.claim("a", 1.0, 100.0)
    bucket.give_back(20.0)
    assert bucket.claim("a", 1.0, 100.0)
