"""Rounds that go together: neighbours that change with the round, snapshots of one round."""

import threading
import time
from contextlib import contextmanager

import pytest
import torch
from support.inside import fingerprint_of, threads_of
from support.members import in_lockstep, members
from support.nodes import config_of, eventually
from support.partners import partner_of
from support.requests import fetch_of
from support.times import at_most

from dpwa.wire.messages import SnapshotHeader

TRANSPORTS = ("auto", "tcp")
ROUNDS = 2  # log2 of four nodes


def one_peer(count=4, **settings):
    return config_of(count, topology="one_peer_exponential", **settings)


def reaches_all(member):
    return all(map(threads_of(member.node).tx.reaches, member.adapter.peers))


def value(member):
    return member.x[0].item()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_four_nodes_have_the_mean_after_two_rounds(transport):
    with members(one_peer(transport=transport), [1.0, 2.0, 3.0, 4.0]) as nodes:
        eventually(lambda: all(map(reaches_all, nodes)))
        in_lockstep(nodes, 2 * ROUNDS)  # to find the memory of the others
        for start in range(3):
            for member, number in zip(nodes, (1.0, 2.0, 3.0, 4.0), strict=True):
                with torch.no_grad():
                    member.net.weight.fill_(number + start)
            in_lockstep(nodes, ROUNDS)
            assert [value(member) for member in nodes] == [2.5 + start] * 4


@contextmanager
def two_of_four(**settings):
    """Two of four nodes, the first of which is to ask the second in its next round."""
    with members(one_peer(**settings), [1.0, 3.0]) as [one, two]:

        def have_met():
            in_lockstep([one, two], 1)
            return one.node.report()["merges"]

        eventually(have_met)
        if one.node.rounds.view.updates % ROUNDS:
            have_met()
        assert one.node.version == two.node.version
        for member, number in ((one, 1.0), (two, 3.0)):
            with torch.no_grad():
                member.net.weight.fill_(number)
        yield one, two


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_is_behind_is_waited_for(transport):
    with two_of_four(transport=transport, timeout_ms=30_000) as (one, two):
        one.adapter.update_send()
        start = time.monotonic()
        late = threading.Timer(0.3, two.adapter.update_send)
        late.start()
        merge = one.adapter.update_wait()
        late.join()
        assert merge is not None
        assert 0.2 < time.monotonic() - start < at_most(2.0)
        assert value(one) == 2.0  # of this round, not of the one before


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_stays_behind_costs_no_more_than_the_timeout(transport):
    timeout_ms = 300
    with two_of_four(transport=transport, timeout_ms=timeout_ms) as (one, _):
        for _ in range(2):  # of which every other asks a node that there is not
            one.adapter.update_send()
            start = time.monotonic()
            assert one.adapter.update_wait() is None
            assert time.monotonic() - start <= at_most((timeout_ms + 50) / 1000)
        assert value(one) == 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_is_ahead_is_read_as_it_was_in_this_round(transport):
    with two_of_four(transport=transport, timeout_ms=30_000) as (one, two):
        two.round()
        with torch.no_grad():
            two.net.weight.fill_(99.0)
        two.round()
        assert one.round() is not None
        assert value(one) == 2.0


def test_a_peer_that_has_ended_costs_nothing():
    with two_of_four(transport="tcp", timeout_ms=60_000) as (one, two):
        two.adapter.close()
        eventually(lambda: not threads_of(one.node).tx.reaches("w2"))
        one.adapter.update_send()
        start = time.monotonic()
        assert one.adapter.update_wait() is None
        assert time.monotonic() - start < at_most(0.5)


def test_a_snapshot_that_is_to_come_is_sent_when_it_comes():
    config = one_peer(2, transport="tcp", timeout_ms=300)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        fingerprint = fingerprint_of(member)
        partner.say(fetch_of(fingerprint, version=2, budget_ms=1000))
        assert partner.answered(0.1) is None
        member.round()
        header = partner.answered()
        assert isinstance(header, SnapshotHeader)
        assert header.version == 2


def test_who_waits_in_vain_is_forgotten():
    config = one_peer(2, transport="tcp", timeout_ms=100)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        fingerprint = fingerprint_of(member)
        waiting = member.node._snapshots._waiting
        partner.say(fetch_of(fingerprint, version=2, budget_ms=2**31))
        eventually(lambda: len(waiting) == 1)
        eventually(lambda: not waiting, timeout_s=2.0)
