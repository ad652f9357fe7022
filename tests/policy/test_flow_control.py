import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.flow_control import FlowControl
from dpwa.policy.health import Health, Outcome, health_after, is_failure

PEERS = ("a", "b", "c")


def flow_of(**scores):
    """Peers of these scores, just after a retry."""
    return FlowControl(scores, retried_at=0.0)


def drawn_from(flow, seed=0, exclude=()):
    return flow.choose(random.Random(seed), now=1.0, exclude=exclude)[0]


def test_a_peer_starts_at_1000():
    assert FlowControl().added("a").scores == {"a": 1000}


def test_success_adds_10_and_failure_takes_100_within_10_and_1000():
    flow = flow_of(a=500)
    assert flow.succeeded("a").scores["a"] == 510
    assert flow.failed("a").scores["a"] == 400
    assert flow_of(a=995).succeeded("a").scores["a"] == 1000
    assert flow_of(a=60).failed("a").scores["a"] == 10


@given(st.lists(st.tuples(st.sampled_from(PEERS), st.booleans())))
def test_scores_stay_in_their_range_and_are_independent(events):
    flow = FlowControl().added("a").added("b").added("c")
    for peer, success in events:
        before = dict(flow.scores)
        flow = flow.succeeded(peer) if success else flow.failed(peer)
        assert 10 <= flow.scores[peer] <= 1000
        assert all(flow.scores[p] == before[p] for p in PEERS if p != peer)


def test_the_target_is_the_highest_score_plus_a_uniform_integer():
    flow = flow_of(a=1000, b=700, c=10)
    drawn = Counter(drawn_from(flow, seed) for seed in range(20_000))
    # b wins when u_b - u_a > 300: a triangle of (690/990)^2 / 2 of the square, 0.243.
    assert drawn["b"] / 20_000 == pytest.approx(0.243, abs=0.015)
    assert drawn["c"] == 0  # 10 + 1000 at the most never beats 1000 + 10 at the least


def test_a_peer_that_is_never_drawn_is_retried_now_and_then():
    flow, rng, asked = flow_of(a=1000, b=1000, c=10), random.Random(1), []
    for now in range(200):
        peer, flow = flow.choose(rng, float(now))
        flow = flow.failed(peer) if peer == "c" else flow.succeeded(peer)
        if peer == "c":
            asked.append(now)
    assert asked == [30, 60, 90, 120, 150, 180]


def test_a_retry_that_succeeds_starts_the_peer_anew():
    peer, flow = flow_of(a=1000, c=10).choose(random.Random(0), now=30.0)
    assert peer == "c"
    assert flow.succeeded("c").scores == {"a": 1000, "c": 1000}
    peer, flow = flow.choose(random.Random(0), now=31.0)
    assert peer == "a"
    assert flow.succeeded("c").scores["c"] == 20  # too late: no longer the retry


def test_peers_that_do_well_enough_are_not_retried():
    flow = flow_of(a=1000, b=500)
    drawn = Counter(flow.choose(random.Random(seed), now=1e6)[0] for seed in range(2_000))
    assert drawn["a"] > drawn["b"]


def test_equal_peers_share_the_load():
    flow = flow_of(a=1000, b=1000, c=1000)
    drawn = Counter(drawn_from(flow, seed) for seed in range(9_000))
    assert all(drawn[p] == pytest.approx(3_000, abs=200) for p in PEERS)


def test_excluded_peers_are_not_drawn():
    flow = flow_of(a=1000, b=10)
    assert drawn_from(flow, exclude={"a"}) == "b"
    assert drawn_from(flow, exclude={"a", "b"}) is None
    assert drawn_from(FlowControl()) is None


def test_the_same_seed_draws_the_same_peers():
    flow = flow_of(a=900, b=1000, c=800)
    one, other = random.Random(3), random.Random(3)
    for now in range(50):
        assert flow.choose(one, now) == flow.choose(other, now)


def test_a_removed_peer_is_forgotten():
    assert flow_of(a=1, b=2).removed("a").scores == {"b": 2}


def test_not_ready_is_neither_success_nor_failure():
    assert not is_failure(Outcome.NOT_READY)
    assert not is_failure(Outcome.FETCHED)
    assert not is_failure(Outcome.UNREACHABLE)  # nobody was there to be asked
    assert is_failure(Outcome.TIMED_OUT)
    assert is_failure(Outcome.LOST)
    after = health_after(Outcome.NOT_READY, Health.UNKNOWN, is_starting=False)
    assert after is Health.ALIVE


@pytest.mark.parametrize(
    ("before", "is_starting", "after"),
    [
        (Health.UNKNOWN, True, Health.UNKNOWN),
        (Health.UNKNOWN, False, Health.UNREACHABLE),
        (Health.ALIVE, True, Health.UNREACHABLE),
        (Health.GONE, False, Health.GONE),
    ],
)
def test_a_peer_that_has_not_started_yet_is_not_called_unreachable(before, is_starting, after):
    assert health_after(Outcome.UNREACHABLE, before, is_starting=is_starting) is after
