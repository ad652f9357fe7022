import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.flow_control import HIGHEST_SCORE, LOWEST_SCORE, TRIED_EVERY_S, FlowControl
from dpwa.policy.health import Health, Outcome, health_after, is_failure

PEERS = ("a", "b", "c")


def flow_of(**scores):
    """Peers of these scores, just after a retry."""
    return FlowControl(scores, retried_at=0.0)


def drawn_from(flow, seed=0, among=None, shares=()):
    return flow.choose(random.Random(seed), 1.0, among, dict(shares))[0]


def failed(flow, peer, now=0.0, times=1, seed=0):
    rng = random.Random(seed)
    for _ in range(times):
        flow = flow.failed(peer, now, rng)
    return flow


def test_a_peer_starts_at_1000():
    assert FlowControl().added("a").scores == {"a": 1000}


def test_success_adds_10_and_failure_takes_100_within_10_and_1000():
    flow = flow_of(a=500)
    assert flow.succeeded("a").scores["a"] == 510
    assert failed(flow, "a").scores["a"] == 400
    assert flow_of(a=995).succeeded("a").scores["a"] == 1000
    assert failed(flow_of(a=60), "a").scores["a"] == 10


@given(st.lists(st.tuples(st.sampled_from(PEERS), st.booleans())))
def test_scores_stay_in_their_range_and_are_independent(events):
    flow = FlowControl().added("a").added("b").added("c")
    for peer, success in events:
        before = dict(flow.scores)
        flow = flow.succeeded(peer) if success else failed(flow, peer)
        assert 10 <= flow.scores[peer] <= 1000
        assert all(flow.scores[p] == before[p] for p in PEERS if p != peer)


def test_the_target_is_the_highest_score_plus_a_uniform_integer():
    flow = flow_of(a=1000, b=700, c=10)
    drawn = Counter(drawn_from(flow, seed) for seed in range(20_000))
    # b wins when u_b - u_a > 300: a triangle of (690/990)^2 / 2 of the square, 0.243.
    assert drawn["b"] / 20_000 == pytest.approx(0.243, abs=0.015)
    assert drawn["c"] == 0  # 10 + 1000 at the most never beats 1000 + 10 at the least


def asked_times(flow, bad, seed, updates_s=range(3_600)):
    """Ask once a second; return when peers of `bad` were asked, which always fail."""
    rng, asked = random.Random(seed), []
    for now in updates_s:
        peer, flow = flow.choose(rng, float(now))
        if peer in bad:
            asked.append(now)
            flow = flow.failed(peer, float(now), rng)
        elif peer is not None:
            flow = flow.succeeded(peer)
    return asked


def test_starved_peers_cost_together_at_most_one_failure_in_30_seconds_and_are_still_tried():
    bad = [f"b{i}" for i in range(10)]
    asked = asked_times(flow_of(a=1000, **dict.fromkeys(bad, 10)), bad, seed=1)
    assert min(after - before for before, after in itertools.pairwise(asked)) >= 30
    assert len(asked) >= 100  # of 120


def test_a_peer_that_begins_to_fail_is_soon_asked_no_more_than_that():
    asked = asked_times(flow_of(a=1000, b=1000), ["b"], seed=2)
    early = [now for now in asked if now < 60]
    assert len(early) <= 9
    assert len(asked) <= len(early) + 3_540 / 30


@pytest.mark.parametrize("bad", [["a"], ["a", "b", "c", "d"]])
def test_while_all_peers_rest_one_is_asked_every_few_seconds(bad):
    for seed in range(20):
        asked = asked_times(flow_of(**dict.fromkeys(bad, 1000)), bad, seed)
        late = [now for now in asked if now > 300]  # by then all have failed many times
        pauses = [after - before for before, after in itertools.pairwise(late)]
        assert max(pauses) <= TRIED_EVERY_S + 1.0  # it is asked for once a second
        assert sum(pauses) / len(pauses) >= 0.5 * TRIED_EVERY_S


def test_of_peers_that_all_rest_the_one_is_asked_whose_rest_ends_first():
    flow = flow_of(a=1000, b=1000)
    for peer in ("a", "b"):
        flow = failed(flow, peer, now=1.0, times=12, seed=3)
    first = min("ab", key=lambda peer: flow.back_offs[peer].until)
    now = 1.0 + TRIED_EVERY_S
    assert flow.rests("a", now)
    assert flow.rests("b", now)
    chosen, after = flow.choose(random.Random(1), now)
    assert chosen == first
    assert after.choose(random.Random(1), now)[0] is None
    other = {"a", "b"} - {first}
    assert flow.choose(random.Random(1), now, among=other)[0] in other
    assert flow.choose(random.Random(1), now, among=())[0] is None
    assert flow.added("c").choose(random.Random(1), now)[0] == "c"


def test_two_failures_are_no_reason_to_wait_and_the_third_is():
    assert drawn_from(failed(flow_of(a=1000), "a", now=1.0, times=2)) == "a"
    thrice = failed(flow_of(a=1000), "a", now=1.0, times=3)
    assert thrice.rests("a", 1.0)
    assert drawn_from(thrice) is None
    assert drawn_from(failed(flow_of(a=1000, b=10), "a", now=1.0, times=3)) == "b"


@pytest.mark.parametrize("event", [FlowControl.succeeded, FlowControl.connected])
def test_a_success_or_a_new_connection_ends_the_rest(event):
    flow = failed(flow_of(a=1000), "a", now=1.0, times=5)
    assert drawn_from(flow) is None
    flow = event(flow, "a")
    assert drawn_from(flow) == "a"
    assert drawn_from(failed(flow, "a", now=1.0)) == "a"  # failures are counted anew


def test_a_retry_that_succeeds_starts_the_peer_anew_and_another_one_may_follow():
    flow = flow_of(a=1000, c=10, d=10)
    rng = random.Random(0)
    first, flow = flow.choose(rng, now=30.0)
    assert first in "cd"
    flow = flow.succeeded(first)
    assert flow.scores[first] == 1000
    second, flow = flow.choose(rng, now=30.1)
    assert {first, second} == {"c", "d"}
    flow = flow.failed(second, 30.1, rng)
    third, flow = flow.choose(rng, now=31.0)
    assert third in ("a", first)
    assert flow.succeeded(second).scores[second] == 20  # too late: no longer the retry


def test_peers_that_do_well_enough_are_not_retried():
    flow = flow_of(a=1000, b=500)
    drawn = Counter(flow.choose(random.Random(seed), now=1e6)[0] for seed in range(2_000))
    assert drawn["a"] > drawn["b"]


def test_slow_peers_take_part_in_their_share_of_the_draws():
    flow = flow_of(a=1000, b=1000, c=1000)
    drawn = Counter(drawn_from(flow, seed, shares={"c": 0.25}.items()) for seed in range(20_000))
    # c takes part in a quarter of the draws and wins a third of them: 1/12. Five standard errors.
    error = (1 / 12 * 11 / 12 / 20_000) ** 0.5
    assert drawn["c"] / 20_000 == pytest.approx(1 / 12, abs=5 * error)
    assert drawn["a"] == pytest.approx(drawn["b"], abs=5 * (20_000 * 11 / 12) ** 0.5)


def test_when_all_are_slow_they_are_drawn_alike():
    flow, slow = flow_of(a=1000, b=1000), {"a": 1 / 16, "b": 1 / 16}
    drawn = Counter(drawn_from(flow, seed, shares=slow.items()) for seed in range(10_000))
    assert drawn["a"] == pytest.approx(5_000, abs=5 * 50)
    assert sum(drawn.values()) == 10_000


def test_only_peers_among_those_that_are_named_are_drawn():
    flow = flow_of(a=1000, b=10)
    assert drawn_from(flow, among={"b"}) == "b"
    assert drawn_from(flow, among=()) is None
    assert drawn_from(FlowControl()) is None


def test_a_removed_peer_is_forgotten():
    left = failed(flow_of(a=1, b=2), "a").removed("a")
    assert left.scores == {"b": 2}
    assert not left.back_offs


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
        (Health.LEFT, False, Health.LEFT),
    ],
)
def test_a_peer_that_has_not_started_yet_is_not_called_unreachable(before, is_starting, after):
    assert health_after(Outcome.UNREACHABLE, before, is_starting=is_starting) is after


def test_draws_are_those_of_randint():
    ours, theirs = random.Random(3), random.Random(3)
    flow, names = FlowControl(dict.fromkeys("abc", 1000)), []
    for _ in range(50):
        names.append(flow.choose(ours, 0.0)[0])
        drawn = {name: theirs.randint(LOWEST_SCORE, HIGHEST_SCORE) for name in "abc"}
        assert names[-1] == max(drawn, key=drawn.__getitem__)
    assert set(names) == set("abc")
