"""When nodes that end their training agree: see `dpwa.policy.finishing`."""

import pytest

from dpwa.policy.finishing import (
    FLAT_ROUNDS,
    IDLE_AFTER_S,
    STILL_FALLS,
    Agreement,
    Ending,
    FinishReport,
    Heard,
)


def after(distances):
    agreement = Agreement()
    for distance in distances:
        agreement = agreement.measured([distance], length=10.0)
    return agreement


def test_a_distance_of_nothing_is_agreement():
    assert after([0.0]).is_reached


def test_a_distance_that_falls_slowly_falls():
    assert not after([0.95**k for k in range(100)]).is_reached


def test_a_distance_that_hardly_falls_or_swings_does_not_fall():
    assert after([0.98**k for k in range(FLAT_ROUNDS + 1)]).is_reached
    assert after([1.0, 1.4, 0.95, 1.4]).is_reached


@pytest.mark.parametrize("rounds", range(1, FLAT_ROUNDS + 1))
def test_a_fall_in_time_begins_anew(rounds):
    flat = [1.0] * rounds
    assert not after([*flat, 0.99 * STILL_FALLS]).is_reached


def test_nodes_that_stop_falling_while_most_are_far_away_are_apart():
    assert after([3.0, 2.9, 2.9]).is_apart
    assert not after([3.0]).is_apart  # the first round measures what was before it
    assert not after([3.0, 0.05]).is_apart  # a unit in the last place of a narrow dtype


def test_one_far_peer_of_three_does_not_make_a_node_apart():
    agreement = Agreement()
    for distances in ([9.0, 1.0, 2.0], [9.0, 0.0, 0.0]):
        agreement = agreement.measured(distances, length=10.0)
    assert not agreement.is_apart
    assert agreement.measured([9.0, 9.0, 0.0], length=10.0).is_apart


def test_nodes_that_end_apart_are_a_problem():
    report = FinishReport(("w2",), {}, 7, 9.0, 2.5, 0.0, 0.1, is_apart=True)
    assert report.problem == (
        "the nodes have not converged after 7 rounds, because the consensus distance is 2.5"
    )
    assert "from 9 to 2.5 in 7 rounds, but the nodes have not converged" in str(report)


def test_a_peer_is_idle_sixty_seconds_after_its_last_step_if_it_took_any():
    def told(updates, *times, **ending):
        heard = None
        for now in times:
            heard = Heard.after(heard, Ending(updates=updates, **ending), now)
        return heard

    for updates in (0, 7):
        assert not told(updates, 5.0, 40.0).is_idle(4.9 + IDLE_AFTER_S)
        assert told(updates, 5.0, 40.0).is_idle(5.0 + IDLE_AFTER_S)
    assert not told(7, 5.0, 40.0, round_number=1).is_idle(1e6)
    stepped = Heard.after(told(7, 5.0), Ending(updates=8), 40.0)
    assert not stepped.is_idle(39.9 + IDLE_AFTER_S)
