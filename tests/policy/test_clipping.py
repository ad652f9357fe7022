"""The clip radius: laws of the scale, and that a minority cannot move it beyond the honest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.clipping import MIN_DISTANCES, ClipRadius

FINITE = st.floats(0.0, 1e300)
DISTANCES = FINITE | st.sampled_from([math.inf, math.nan])
NOT_FINITE = [math.inf, -math.inf, math.nan]


def learnt(distances, **options):
    radius = ClipRadius(**options)
    for distance in distances:
        radius.scale(distance)
    return radius


@given(
    st.lists(DISTANCES, min_size=1, max_size=40),
    st.floats(0.0, 1.0),
    st.integers(1, 20),
    st.integers(0, 8),
)
def test_a_pull_is_never_longer_than_the_radius_nor_than_the_distance(
    distances, quantile, window, warm_up
):
    radius = ClipRadius(quantile, window, warm_up)
    for distance in distances:
        scale = radius.scale(distance)
        assert 0.0 <= scale <= 1.0
        if math.isfinite(distance) and scale > 0.0:
            # One rounding in the division, which is of 5e-324 if it is subnormal, and one after it.
            assert scale * distance <= radius.radius * (1 + 2**-51) + distance * 5e-324


@given(st.lists(st.tuples(FINITE, st.booleans()), min_size=1, max_size=60))
def test_a_minority_of_adversaries_cannot_move_the_radius_beyond_the_honest(arrivals):
    window = 7
    radius = ClipRadius(window=window, warm_up=1)
    for count, (distance, _) in enumerate(arrivals, start=1):
        radius.scale(distance)
        recent = arrivals[max(0, count - window) : count]
        honest = [seen for seen, is_adversary in recent if not is_adversary]
        if 2 * len(honest) > len(recent):
            assert min(honest) <= radius.radius <= max(honest)


@given(st.floats(0.0, 1e300), st.integers(1, 80), st.floats(0.0, 1.0))
def test_equal_distances_are_not_clipped(distance, count, quantile):
    radius = learnt([distance] * count, quantile=quantile, warm_up=1)
    assert radius.scale(distance) == 1.0


def test_a_far_peer_pulls_as_much_as_one_at_the_radius():
    radius = learnt([1.0, 2.0, 3.0, 2.0, 2.0])
    assert radius.scale(1e6) * 1e6 == pytest.approx(2.0)
    assert radius.radius == 2.0


def test_nothing_is_merged_during_the_warm_up():
    radius = ClipRadius(warm_up=3)
    assert [radius.scale(1.0) for _ in range(2)] == [0.0, 0.0]
    assert radius.radius is None
    assert radius.scale(1.0) == 1.0


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=10), st.integers(0, 9))
def test_before_the_quantile_is_known_the_smallest_distance_is_the_radius(honest, place):
    arrivals = [1e9] * (13 - len(honest))
    for distance in honest:
        arrivals.insert(place, distance)
    radius = ClipRadius(warm_up=15)
    assert [radius.scale(distance) for distance in arrivals[: MIN_DISTANCES - 1]] == [0.0] * 3
    for count, distance in enumerate(arrivals[3:], start=4):
        assert radius.scale(distance) == min(1.0, min(arrivals[:count]) / distance)


@pytest.mark.parametrize("distance", NOT_FINITE)
def test_a_distance_that_is_not_finite_is_refused_and_teaches_nothing(distance):
    radius = learnt([1.0, 2.0, 3.0], warm_up=3)
    assert [radius.scale(distance) for _ in range(1_000)] == [0.0] * 1_000
    assert radius.radius == 2.0
    assert radius.scale(4.0) == learnt([1.0, 2.0, 3.0], warm_up=3).scale(4.0)


@pytest.mark.parametrize("distance", NOT_FINITE)
def test_a_distance_that_is_not_finite_does_not_end_the_warm_up(distance):
    assert learnt([distance] * 100, warm_up=2).scale(1.0) == 0.0


@given(st.lists(FINITE, max_size=30), st.floats(0.1, 10.0))
def test_old_distances_are_forgotten(history, distance):
    assert learnt([*history, *[distance] * 10], window=10).radius == distance


def test_a_lower_quantile_is_stricter():
    radii = [learnt(range(1, 12), quantile=q).radius for q in (0.0, 0.25, 0.5, 1.0)]
    assert radii == [1, 3, 6, 11]
