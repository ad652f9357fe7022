import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.request_budget import MOST_REMEMBERED, RequestBudget


def test_a_burst_is_free_and_what_follows_waits_its_turn():
    budget = RequestBudget(rate_per_s=10.0, burst=5)
    waits = [budget.charge("w2", 100, now=0.0) for _ in range(8)]
    assert waits == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2, 0.3])
    assert budget.charge("w3", 100, now=0.0) == 0
    assert budget.charge("w2", 100, now=1.0) == 0


def test_all_together_have_what_the_peers_in_view_have():
    budget = RequestBudget(rate_per_s=10.0, burst=5)
    # 3 peers: 30 in a second, and 15 at once.
    waits = [budget.charge(f"stranger {number}", 3, now=0.0) for number in range(18)]
    assert waits[:15] == [0] * 15
    assert waits[15:] == pytest.approx([1 / 30, 2 / 30, 3 / 30])


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=200), st.integers(1, 20))
def test_who_waits_as_told_never_exceeds_the_rate(gaps, burst):
    budget, now, times = RequestBudget(rate_per_s=10.0, burst=burst), 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
        now += budget.charge("w2", 1, now)
    for index, start in enumerate(times):
        for later, end in enumerate(times[index:], start=1):
            # One more: whoever is told to wait has been read already.
            assert later <= math.floor(10.0 * (end - start) + burst + 1 + 1e-6)


def test_peers_that_are_gone_are_forgotten():
    budget = RequestBudget(rate_per_s=10.0, burst=5)
    for number in range(10 * MOST_REMEMBERED):
        budget.charge(number, 1, now=float(number))
        assert len(budget._due) <= MOST_REMEMBERED
