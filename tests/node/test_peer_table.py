"""What is logged of a peer: what changes, and not the same again and again."""

import logging
import random
from types import SimpleNamespace

from dpwa.node.peers import MANY, SAME_AGAIN_S, PeerTable
from dpwa.policy.health import Outcome


def test_a_peer_that_is_slow_now_and_then_is_warned_of_once_a_minute(caplog):
    now = 0.0
    peers = PeerTable("w1", SimpleNamespace(now=lambda: now), random.Random(0))
    peers.add("w2", "tcp://10.0.0.2:7000")
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for _ in range(int(2.5 * SAME_AGAIN_S)):
            now += 1.0
            peers.record("w2", (Outcome.TIMED_OUT, Outcome.FETCHED)[int(now) % 2], "slower")
    assert [r.getMessage() for r in caplog.records] == [
        "w1: peer w2 does not answer in time: slower"
    ] * 3


def test_each_death_of_a_peer_is_warned_of(caplog):
    now = 20.0
    peers = PeerTable("w1", SimpleNamespace(now=lambda: now), random.Random(0))
    peers.add("w2", "tcp://10.0.0.2:7000")
    with caplog.at_level(logging.WARNING, logger="dpwa.peers"):
        for outcome in (Outcome.FETCHED, Outcome.LOST) * 3:
            peers.record("w2", outcome)
    assert len(caplog.records) == 3


def test_of_many_peers_that_are_not_there_the_first_is_warned_of(caplog):
    now = 20.0
    peers = PeerTable("w1", SimpleNamespace(now=lambda: now), random.Random(0))
    names = [f"w{index}" for index in range(2, MANY + 4)]
    for name in names:
        peers.add(name, f"tcp://10.0.0.2:{7000 + int(name[1:])}")
    now += 20.0
    with caplog.at_level(logging.INFO, logger="dpwa.peers"):
        for name in names:
            peers.record(name, Outcome.UNREACHABLE)
    assert [r.levelname for r in caplog.records] == ["WARNING"] + ["INFO"] * (len(names) - 1)


def test_a_peer_that_was_not_there_is_asked_again_once_it_has_spoken():
    peers = PeerTable("w1", SimpleNamespace(now=lambda: 0.0), random.Random(0))
    for name in ("w2", "w3"):
        peers.add(name, "tcp://10.0.0.2:7000")
    peers.absent("w2")
    chosen = [peers.choose(random.Random(seed), ()) for seed in range(300)]
    assert chosen.count("w2") < 30
    peers.spoke("w2")
    chosen = [peers.choose(random.Random(seed), ()) for seed in range(300)]
    assert chosen.count("w2") > 100


def test_a_peer_that_has_asked_was_seen_and_may_still_be_on_its_way_to_start():
    now = 20.0
    peers = PeerTable("w1", SimpleNamespace(now=lambda: now), random.Random(0))
    peers.add("w2", "tcp://10.0.0.2:7000")
    peers.spoke("w2")  # on its own connection, before there is one to it
    now += 1.5
    assert peers.may_still_start("w2")
    assert peers.report()[0]["heard_s"] == 1.5
