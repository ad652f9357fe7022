import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.flow_control import FIRST_REST_S, LONGEST_REST_S, BackOff, longest_rest_s


def after(failures, seed=0, now=0.0):
    rests, rng = BackOff(), random.Random(seed)
    for _ in range(failures):
        rests = rests.failed(now, rng)
    return rests


@given(st.integers(0, 2_000), st.integers(0, 2**32), st.floats(0, 1e9))
def test_a_rest_ends_within_its_bound(failures, seed, now):
    rests = after(failures, seed, now)
    assert not rests.rests(
        now + min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** max(0, min(failures, 50) - 3))
    )
    assert rests.failures == failures


def test_rests_double_from_the_third_failure_up_to_a_minute():
    assert [longest_rest_s(k) for k in range(11)] == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize("failures", [3, 5, 20])
def test_a_rest_is_uniform_from_nothing_to_its_bound(failures):
    longest_s = longest_rest_s(failures)
    shares = [after(failures, seed).until / longest_s for seed in range(4_000)]
    error = (1 / 12 / 4_000) ** 0.5
    assert sum(shares) / 4_000 == pytest.approx(0.5, abs=5 * error)
    assert sum(share < 0.25 for share in shares) / 4_000 == pytest.approx(0.25, abs=0.035)
    assert max(shares) <= 1.0
