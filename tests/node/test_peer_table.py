"""What is logged of a peer: what changes, and not the same again and again."""

import logging
import random
from collections import Counter

import pytest
from support.times import SetClock

from dpwa.node.peers import MANY, SAME_AGAIN_S, STARTUP_GRACE_S, PeerTable
from dpwa.policy.health import Outcome
from dpwa.transport.link import LinkState
from dpwa.wire.shards import WHOLE


def table_of(*names, clock=None):
    """What w1 knows of peers that were just added."""
    peers = PeerTable("w1", clock or SetClock(20.0), random.Random(0))
    peers.add_peers(dict.fromkeys(names, "tcp://10.0.0.2:7000"))
    return peers


def test_a_peer_that_is_slow_now_and_then_is_warned_of_once_a_minute(caplog):
    clock, outcomes = SetClock(), [(Outcome.TIMED_OUT, "slower"), (Outcome.FETCHED,)]
    peers = table_of("w2", clock=clock)
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for _ in range(int(2.5 * SAME_AGAIN_S)):
            clock.time += 1.0
            peers.record("w2", *outcomes[int(clock.time) % 2])
    assert [r.getMessage() for r in caplog.records] == [
        "w1: peer w2 does not answer in time: slower [DPWA-W007]",
        "w1: peer w2 is alive again [DPWA-W007]",
    ] * 3


def test_each_death_of_a_peer_is_warned_of(caplog):
    peers = table_of("w2")
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for outcome in (Outcome.FETCHED, Outcome.LOST) * 3:
            peers.record("w2", outcome)
    assert sum("cannot be reached" in text for text in caplog.messages) == 3


def test_who_was_warned_of_is_said_to_be_well_again_and_nobody_else(caplog):
    peers = table_of("w2")
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for outcome in (Outcome.FETCHED, Outcome.LOST, Outcome.DIVERGED, Outcome.FETCHED):
            peers.record("w2", outcome)
        peers.record("w2", Outcome.BUSY)
    assert [text.removeprefix("w1: peer w2 ") for text in caplog.messages] == [
        "cannot be reached: nothing answers at tcp://10.0.0.2:7000 [DPWA-W007]",
        "has diverged and is not merged [DPWA-W007]",
        "is alive again [DPWA-W007]",
    ]


def test_a_peer_that_was_never_there_before_is_not_alive_again(caplog):
    clock = SetClock(20.0)
    peers = table_of("w2", clock=clock)
    clock.time += 20.0
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for outcome in (Outcome.UNREACHABLE, Outcome.FETCHED, Outcome.LOST, Outcome.FETCHED):
            peers.record("w2", outcome)
    said = [text.removeprefix("w1: peer w2 ") for text in caplog.messages]
    assert said[1::2] == ["is alive [DPWA-W007]", "is alive again [DPWA-W007]"]


def test_a_peer_that_was_found_missing_is_not_drawn_before_it_is_connected_again():
    peers, rng = table_of("w2", "w3"), random.Random(0)
    for name in peers.names:
        peers.link_changed(name, LinkState.UP)
        peers.record(name, Outcome.FETCHED)

    def drawn():
        return {peers.choose(rng) for _ in range(100)}

    peers.link_changed("w3", LinkState.DOWN, "refused")
    assert drawn() == {"w2", "w3"}  # whether it is missing is for a fetch to say
    peers.record("w3", Outcome.UNREACHABLE)
    assert drawn() == {"w2"}
    peers.link_changed("w2", LinkState.DOWN, "refused")
    peers.record("w2", Outcome.LOST)
    assert drawn() == {None}
    peers.link_changed("w3", LinkState.UP)
    assert drawn() == {"w3"}


def test_of_many_peers_that_are_not_there_the_first_is_warned_of(caplog):
    clock, names = SetClock(20.0), [f"w{index}" for index in range(2, MANY + 4)]
    peers = table_of(*names, clock=clock)
    clock.time += 20.0
    with caplog.at_level(logging.INFO, logger="dpwa.peers"):
        for name in names:
            peers.record(name, Outcome.UNREACHABLE)
    assert [r.levelname for r in caplog.records] == ["WARNING"] + ["INFO"] * (len(names) - 1)


def test_a_peer_that_was_not_there_is_asked_again_once_it_has_spoken():
    peers = table_of("w2", "w3")
    peers.absent("w2")
    chosen = [peers.choose(random.Random(seed), ()) for seed in range(300)]
    assert chosen.count("w2") < 30
    peers.spoke("w2")
    chosen = [peers.choose(random.Random(seed), ()) for seed in range(300)]
    assert chosen.count("w2") > 100


def test_a_peer_that_has_asked_was_seen_and_may_still_be_on_its_way_to_start():
    clock = SetClock(20.0)
    peers = table_of("w2", clock=clock)
    peers.spoke("w2")  # on its own connection, before there is one to it
    clock.time += 1.5
    assert peers.may_still_start("w2")
    assert peers.report(lambda _: {})[0].heard_s == 1.5


def many_peers(most_connected, near):
    names = [f"w{index}" for index in range(2, 42)]
    peers = table_of(*names)
    peers.most_connected = most_connected
    for name in names[:near]:
        peers.link_changed(name, LinkState.UP)
    return peers, names


def drawn_of(peers, times=800, **bounds):
    rng = random.Random(3)
    return Counter(peers.choose(rng, **bounds) for _ in range(times))


def test_of_more_peers_than_connections_those_that_are_connected_are_drawn_three_times_of_four():
    peers, names = many_peers(8, near=8)
    drawn = drawn_of(peers)
    share = sum(drawn[name] for name in names[:8]) / 800
    assert 0.75 < share < 0.85  # with those that are near by chance
    assert drawn.keys() == set(names)
    assert drawn_of(peers, exclude=names[:8]).keys() == set(names[8:])


@pytest.mark.parametrize(
    ("most_connected", "near", "among"), [(40, 30, 40), (8, 3, 40), (8, 8, 6), (8, 1, 2)]
)
def test_as_long_as_there_is_room_for_connections_all_are_drawn_alike(most_connected, near, among):
    peers, names = many_peers(most_connected, near)
    drawn = drawn_of(peers, among=names[-among:] if among < 40 else None)
    assert drawn.keys() == set(names[-among:])
    assert max(drawn.values()) < 2.5 * 800 / among


@pytest.mark.parametrize("trouble", ["it rests", "it was asked to go"])
def test_near_peers_that_rest_or_shall_go_are_not_preferred(trouble):
    peers, names = many_peers(8, near=8)
    for name in names[:7]:
        if trouble == "it rests":
            for _ in range(6):
                peers.record(name, Outcome.TIMED_OUT)
        else:
            peers.asked_to_go(name)
    drawn = drawn_of(peers, times=4000)
    assert drawn[names[7]] > 2750
    assert sum(drawn[name] for name in names[:7]) < 300
    assert drawn.keys() > set(names[8:])


def test_a_peer_that_was_only_asked_about_is_told_of_like_one_of_which_nothing_was_ever_asked():
    clock = SetClock(20.0)
    peers = table_of("w2", "w3", clock=clock)

    def told():
        state = (peers.mergeable, peers.refusals, peers.has_unmapped, peers.names)
        return state, peers.report(lambda _: {})

    before = told()
    assert not peers.was_heard("w2")
    assert told() == before
    clock.time += 20.0  # w3 may not start any more
    peers.record("w2", Outcome.OTHER_MODEL, "it has another shape")
    assert [text[:2] for text in peers.refusals] == ["w2"]
    assert peers.mergeable == {"w3"}
    peers.remove("w3")
    assert [peer.name for peer in peers.report(lambda _: {})] == ["w2"]


def test_a_peer_may_say_that_it_has_ended_before_its_connection_is_seen():
    peers = table_of("w2")
    peers.merged.ends("w2", 3)
    peers.link_changed("w2", LinkState.UP)
    peers.merged.record_merge("w2", 3, WHOLE)
    assert peers.merged.merged_version("w2", WHOLE) == 0  # it is merged again and again


UP, DOWN, IDLE, NEW = LinkState.UP, LinkState.DOWN, LinkState.IDLE, LinkState.CONNECTING


@pytest.mark.parametrize(
    ("states", "is_same"),
    [
        ((IDLE, UP), True),
        ((IDLE, NEW, UP), True),
        ((DOWN, UP), False),
        ((DOWN, IDLE, NEW, UP), False),
        ((IDLE, NEW, DOWN, UP), False),
        ((NEW, UP), False),
    ],
)
def test_a_peer_is_the_process_of_before_if_its_connection_was_only_let_go(states, is_same):
    peers = table_of("w2")
    peers.link_changed("w2", UP)
    peers.merged.record_merge("w2", 3, WHOLE)
    for state in states:
        peers.link_changed("w2", state)
    assert peers.merged.merged_version("w2", WHOLE) == (3 if is_same else 0)


def test_all_peers_are_refused_if_each_that_was_ever_heard_of_is():
    clock = SetClock(20.0)
    peers = table_of("w2", "w3", "w4", clock=clock)
    peers.record("w2", Outcome.OTHER_MODEL, "first difference: here 'a' int8[3], there no such")
    assert peers.refusals == ()  # the others may be on their way to start
    clock.time += STARTUP_GRACE_S
    told = "w2 has a different model: first difference: here 'a' int8[3], there no such"
    assert peers.refusals == (told,)
    peers.link_changed("w3", LinkState.UP)
    assert peers.refusals == ()
    peers.record("w3", Outcome.MISTAKEN, "the name w1 is taken")
    peers.record("w3", Outcome.UNREACHABLE, "refused")  # which says no more why
    names_clash = "w3 is not connected, because names clash: the name w1 is taken"
    assert peers.refusals == (told, names_clash)
    assert [each.problem for each in peers.report(lambda _: {})[:2]] == [
        told.removeprefix("w2 has a different model: "),
        "the name w1 is taken",
    ]
    peers.peer_left("w2")
    peers.record("w2", Outcome.LOST)
    assert peers.refusals == (told, names_clash)
    peers.link_changed("w2", LinkState.UP)  # it may be another process
    assert peers.refusals == ()
    peers.record("w2", Outcome.OTHER_MODEL)
    assert peers.refusals == ("w2 has a different model", names_clash)
    peers.record("w2", Outcome.FETCHED)
    assert peers.refusals == ()
    peers.record("w2", Outcome.LOST)  # it may be started again
    assert peers.refusals == ()


def test_a_model_that_was_compared_without_a_fetch_counts_until_it_is_found_equal(caplog):
    peers = table_of("w2")
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        peers.compared("w2", "")
        for outcome in (Outcome.NOT_READY, Outcome.OTHER_MODEL, Outcome.BUSY):
            peers.compared("w2", "first difference: here 'b' bfloat16[2], there 'b' float16[2]")
            peers.record("w2", outcome, "")  # which says nothing of the model
        assert peers.refusals[0].endswith("here 'b' bfloat16[2], there 'b' float16[2]")
        peers.compared("w2", "")
    assert peers.refusals == ()
    assert [text.split(": ")[1] for text in caplog.messages] == [
        "peer w2 has a different model",
        "peer w2 is alive again [DPWA-W007]",
    ]
