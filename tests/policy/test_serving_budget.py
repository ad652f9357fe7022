import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.token_buckets import ServingBudget


def test_a_burst_is_free_and_what_follows_waits_its_turn():
    budget = ServingBudget(share=0.1, burst_s=0.05)
    waits = [budget.charge(0.01, now=0.0) for _ in range(8)]
    assert waits == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2, 0.3])
    assert budget.charge(0.01, now=1.0) == 0


costs = st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 0.02)), min_size=1, max_size=200)


@given(costs, st.floats(0.05, 1.0), st.floats(0, 0.1))
def test_who_waits_as_told_never_uses_more_than_the_share(requests, share, burst_s):
    budget, now, used = ServingBudget(share, burst_s), 0.0, []
    for gap, cost_s in requests:
        now += gap
        used.append((now, cost_s))
        now += budget.charge(cost_s, now)
    for index, (start, _) in enumerate(used):
        total = 0.0
        for end, cost_s in used[index:]:
            # What the last one costs is known when it was served.
            assert total <= share * (end - start) + burst_s + cost_s_max(used) + 1e-9
            total += cost_s


def cost_s_max(used):
    return max(cost_s for _, cost_s in used)


@given(st.floats(0, 1e6))
def test_after_a_long_silence_there_is_one_burst_and_no_more(silence):
    budget = ServingBudget(share=0.1, burst_s=0.05)
    budget.charge(10.0, now=0.0)
    now = 1000 + silence
    assert budget.charge(0.05, now) == 0
    assert budget.charge(0.01, now) == pytest.approx(0.1, rel=1e-3)
