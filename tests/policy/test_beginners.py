import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.beginners import (
    BEGINNING,
    LEAD,
    MAX_BELIEVED_CLOCK,
    MAX_UPDATES_PER_S,
    SHARE,
    TRACE_VALUES,
    Doubt,
    began_apart,
    doubt_of,
    is_far_behind,
    most_borne_out,
    stepped_alike,
    trace_of,
    with_first_step,
)
from dpwa.types import TRACE_BYTES

clocks = st.floats(0.0, 1e9)


@given(clocks, clocks)
def test_of_two_at_most_one_is_far_behind(one, two):
    assert not (is_far_behind(one, two) and is_far_behind(two, one))


@given(clocks, clocks, st.floats(0.0, 1e6))
def test_who_trains_gets_away_from_it_and_who_is_waited_for_gets_into_it(own, peer, more):
    if not is_far_behind(own, peer):
        assert not is_far_behind(own + more, peer)
    else:
        assert is_far_behind(own, peer + more)


@given(st.floats(BEGINNING, 1e9), clocks)
def test_nobody_is_behind_for_ever(own, peer):
    assert not is_far_behind(own, peer)


@given(st.floats(0.0, LEAD, exclude_max=True), clocks)
def test_a_few_updates_are_no_lead(lead, own):
    assert not is_far_behind(own, own + lead) or lead >= LEAD


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        (0.0, LEAD, True),
        (0.0, LEAD - 0.1, False),
        (1.0, 98.0, True),
        (49.0, 98.0, False),
        (999.0, 5000.0, True),
        (1000.0, 5000.0, False),
    ],
)
def test_examples(own, peer, expected):
    assert is_far_behind(own, peer) is expected


@given(st.floats(1.5, 100.0), st.floats(0.1, 1.0), st.integers(0, 200))
def test_a_straggler_that_merges_is_soon_merged_however_slow_it_is(slowness, factor, late):
    """Both take steps at their own pace; the slow one merges after each of its own."""
    fast, slow = float(late), 0.0
    refused = 0
    for _ in range(300):  # steps of the slow one
        fast += slowness
        slow += 1.0
        # The fast one looks at the worst moment: right before the slow one merges.
        is_refused = is_far_behind(slow, fast)
        slow = fast if is_refused else slow + factor * (fast - slow)
        refused = refused + 1 if is_refused else 0
        assert refused <= 2
    lag = slowness / factor
    assert not refused or fast * (1.0 - SHARE) < lag + slowness


@given(st.lists(st.floats(0.0, 5000.0), min_size=2, max_size=6), st.integers(0, 2**32))
def test_all_merge_all_in_the_end_whatever_they_begin_with(clocks, seed):
    """Each takes steps and asks somebody: after a while nobody is refused by anybody."""
    rng = random.Random(seed)
    for _ in range(100):
        for own in range(len(clocks)):
            clocks[own] += 1.0
            peer = rng.choice([p for p in range(len(clocks)) if p != own])
            if is_far_behind(clocks[own], clocks[peer]):
                clocks[own] = clocks[peer]
            elif not is_far_behind(clocks[peer], clocks[own]):
                clocks[own] = (clocks[own] + clocks[peer]) / 2
    behind = sum(is_far_behind(one, two) for one in clocks for two in clocks)
    assert behind == 0


def test_who_asks_nobody_and_is_slow_is_merged_when_it_has_trained_for_long():
    clock, steps = 0.0, 0
    while is_far_behind(clock, 1e6):
        clock += 1.0
        steps += 1
    assert steps == BEGINNING


values = st.lists(st.floats(-10.0, 10.0, width=32), min_size=TRACE_VALUES, max_size=TRACE_VALUES)


@given(values)
def test_a_trace_says_that_equal_beginnings_are_equal(drawn):
    assert not began_apart(trace_of(drawn), trace_of(drawn))
    rounded = [value * (1 + 2**-9) for value in drawn]  # as bfloat16 would
    assert not began_apart(trace_of(drawn), trace_of(rounded))


@given(values, values)
def test_both_ends_say_the_same(one, two):
    assert began_apart(trace_of(one), trace_of(two)) == began_apart(trace_of(two), trace_of(one))


@given(st.integers(0, 2**32))
def test_independent_draws_are_told_apart(seed):
    rng = random.Random(seed)
    one, two = ([rng.gauss(0.0, 0.1) for _ in range(TRACE_VALUES)] for _ in range(2))
    assert began_apart(trace_of(one), trace_of(two))


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 1e300])
def test_what_tells_nothing_has_no_trace(value):
    assert trace_of([value] * TRACE_VALUES) == b""


def test_first_steps_are_alike_if_the_loss_and_what_became_of_the_values_are():
    rng = random.Random(5)
    before, after, other = ([rng.gauss(0.0, 1.0) for _ in range(TRACE_VALUES)] for _ in range(3))
    trace = trace_of(before)
    stepped = with_first_step(trace, 0.25, after)
    assert stepped_alike(stepped, with_first_step(trace, 0.25, after))
    assert not began_apart(stepped, trace)
    assert with_first_step(stepped, 0.5, other) == stepped  # a second step tells nothing
    assert not stepped_alike(stepped, with_first_step(trace, 0.25 + 1e-9, after))
    assert not stepped_alike(stepped, with_first_step(trace, 0.25, other))
    # Where hardly anything was trained, or nothing is known, steps tell nothing.
    few = [*after[:3], *before[3:]]
    for nothing in (
        trace,
        b"",
        with_first_step(trace, 0.25, few),
        with_first_step(b"", 1.0, after),
    ):
        assert not stepped_alike(nothing, nothing)
    diverged = with_first_step(trace, 0.25, [math.nan, *after[1:]])
    assert not stepped_alike(diverged, diverged)


@pytest.mark.parametrize("other", [b"", b"short", b"\x01" * (TRACE_BYTES + 1)])
def test_no_trace_is_apart_from_none(other):
    trace = trace_of([1.0] * TRACE_VALUES)
    assert len(trace) == TRACE_BYTES
    assert not began_apart(trace, other)
    assert not began_apart(other, trace)


# Clocks that may be lies

NEVER = math.inf  # seconds since a peer has told its clock


@pytest.mark.parametrize(
    ("clock", "own", "best", "before", "elapsed_s", "expected"),
    [
        (LEAD - 0.1, 0.0, 0.0, 0.0, 0.0, Doubt.NONE),
        (500.0, 3.0, 260.0, 0.0, NEVER, Doubt.NONE),
        (500.0, 3.0, 240.0, 0.0, NEVER, Doubt.CONTRADICTED),
        (
            500.0,
            300.0,
            36.0,
            0.0,
            NEVER,
            Doubt.CONTRADICTED,
        ),  # own has believed it
        (500.0, 3.0, LEAD - 0.1, 0.0, NEVER, Doubt.NONE),  # others that are new do not know
        (500.0, 3.0, None, 0.0, NEVER, Doubt.UNCONFIRMED),
        (500.0, 3.0, None, 400.0, 1.0, Doubt.UNCONFIRMED),
        (36.0 + 1e5, 36.0, None, 36.0, 1.0, Doubt.UNCONFIRMED),  # a loop that trains nothing
        (36.0 + 3.0 * MAX_UPDATES_PER_S, 36.0, None, 36.0, 1.0, Doubt.IMPOSSIBLE),
        (36.0 + 3.0 * MAX_UPDATES_PER_S, 36.0, 36.0, 36.0, 1.0, Doubt.IMPOSSIBLE),
        (
            36.0 + 3.0 * MAX_UPDATES_PER_S,
            36.0,
            2.0 * MAX_UPDATES_PER_S,
            36.0,
            1.0,
            Doubt.NONE,
        ),  # it took over
        (36.0 + 3.0 * MAX_UPDATES_PER_S, 36.0, None, 36.0, 3.0, Doubt.UNCONFIRMED),
        (2.0 * MAX_BELIEVED_CLOCK, 0.0, 2.0 * MAX_BELIEVED_CLOCK, 0.0, NEVER, Doubt.IMPOSSIBLE),
    ],
)
def test_a_clock_is_believed_as_others_bear_it_out(clock, own, best, before, elapsed_s, expected):
    assert doubt_of(clock, own, best, before, elapsed_s) is expected


@given(clocks, clocks)
def test_what_counts_of_a_lie_is_what_all_others_can_follow(own, best):
    most = most_borne_out(own, best)
    assert most >= own
    assert most == own or doubt_of(most, 0.0, best, 0.0, NEVER) is Doubt.NONE or most < LEAD


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=200))
def test_a_liar_who_goes_on_lying_raises_clocks_no_faster_than_updates_could(factors):
    own = best = 36.0
    for merges, factor in enumerate(factors, start=1):
        own += factor * (min(1e15, most_borne_out(own, best)) - own)
        best = own  # all others were lied to as well
        assert own <= 36.0 + LEAD * merges
