import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.link_estimates import FEWEST_BYTES, MIN_SHARE, LinkEstimate, shares

SEED = 5


def test_nothing_is_expected_before_the_first_answer():
    assert LinkEstimate().expected_s is None
    assert LinkEstimate().bytes_per_s is None
    assert LinkEstimate().answered(0.02).expected_s == 0.02


def test_latency_and_rate_come_to_what_the_link_has():
    """A link of 200 ms and 20 Mbit/s, with noise of a quarter in both."""
    print(f"seed {SEED}")
    rng, link = random.Random(SEED), LinkEstimate().answered(3.0).streamed(1_000_000, 9.0)
    for _ in range(400):
        nbytes = rng.choice([1_000_000, 4_000_000])
        link = link.answered(0.2 * rng.uniform(0.75, 1.25))
        link = link.streamed(nbytes, nbytes / 2.5e6 * rng.uniform(0.75, 1.25))
    # The mean of the last 15 or so: 2 a / (2 - a) of the variance stays, a = 1/8; five deviations.
    spread = 5 * (0.5**2 / 12 * (1 / 8) / (2 - 1 / 8)) ** 0.5
    assert link.latency_s == pytest.approx(0.2, rel=spread)
    assert link.bytes_per_s == pytest.approx(2.5e6, rel=spread)


@given(st.lists(st.tuples(st.floats(1e-4, 10), st.integers(FEWEST_BYTES, 10**9)), min_size=1))
def test_the_rate_lies_between_those_that_were_seen(streams):
    link = LinkEstimate()
    for seconds, nbytes in streams:
        link = link.streamed(nbytes, seconds)
    seen = [nbytes / seconds for seconds, nbytes in streams]
    assert min(seen) * (1 - 1e-9) <= link.bytes_per_s <= max(seen) * (1 + 1e-9)


def test_short_streams_and_those_that_took_no_time_say_nothing_of_the_rate():
    link = LinkEstimate().streamed(FEWEST_BYTES - 1, 0.001).streamed(10**6, 0.0)
    assert link.bytes_per_s is None


def test_peers_within_a_factor_of_two_are_drawn_alike():
    assert shares({"a": 0.3, "b": 0.4, "c": 0.6}, budget_s=2.5) == {}
    assert shares({"a": 0.001, "b": 0.1, "c": 0.09}, budget_s=2.5) == {}  # below the floor
    assert shares({"a": 7.0}, budget_s=10.0) == {}
    assert shares({}, budget_s=1.0) == {}


def test_a_slow_peer_costs_no_more_than_one_of_twice_the_median():
    assert shares({"a": 0.1, "b": 0.2, "c": 1.0}, 2.5) == {"c": pytest.approx(0.4)}
    assert shares({"a": 0.2, "c": 1.0}, 2.5) == {"c": pytest.approx(0.4)}


def test_a_peer_that_takes_longer_than_there_is_time_is_drawn_less_often():
    assert shares({"a": 2.0, "b": 3.0}, budget_s=2.5) == {"b": pytest.approx(2.5 / 3)}
    assert shares({"a": 2.0, "b": 3.0}, budget_s=10.0) == {}


times = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1e-6, 1e4))


@given(times, st.floats(1e-3, 1e4))
def test_every_share_is_a_chance_that_is_not_too_small(expected_s, budget_s):
    found = shares(expected_s, budget_s)
    assert all(MIN_SHARE <= share < 1 for share in found.values())
    for peer, share in found.items():
        assert share == MIN_SHARE or share * expected_s[peer] <= budget_s * (1 + 1e-9)
    drawn_always = [seconds for peer, seconds in expected_s.items() if peer not in found]
    slow = [expected_s[peer] for peer in found]
    assert max(drawn_always, default=0) <= min(slow, default=1e4)
