"""LSGD between real nodes, and leaders whose snapshots are passed on by those who have them."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from support.members import Member, at_once, gossip, in_lockstep, members
from support.nodes import config_of, eventually
from support.partners import partner_of
from support.requests import fetch_of

from dpwa.node.serving.upload import SnapshotCache
from dpwa.transport.link import LinkState
from dpwa.wire.messages import Elsewhere, Fetch, NewsMessage, NotReady, SnapshotHeader

FAST = {"local_period": 1, "global_period": 1, "c1": 0.5, "c2": 0.5}


def following(count, **settings):
    """A configuration of LSGD where leaders change at once and jumps are frequent."""
    defaults = {"algorithm": "lsgd", "loss_window": 1, "lsgd": FAST, "transport": "tcp"}
    return config_of(count, **{**defaults, **settings})


def by_value(member):
    """A round in which the loss is the value that the node began with: w1 leads."""
    member.round(float(member.name[1:]) / 10)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_all_come_to_the_leader_which_is_not_moved(transport):
    with members(following(3, transport=transport), [1.0, 2.0, 3.0]) as nodes:

        def is_there():
            in_lockstep(nodes, 5, by_value)
            return max((m.x - 1.0).abs().max() for m in nodes) < 1e-6

        eventually(is_there)
        assert (nodes[0].x == 1.0).all()
        assert nodes[0].node.report()["merges"] == 0


def test_nobody_is_pulled_before_it_has_seen_a_leader():
    never = {**FAST, "local_period": 10**6, "global_period": 10**6, "p1": 1.0, "p2": 1.0}
    with members(following(2, lsgd=never), [1.0, 2.0]) as nodes:
        in_lockstep(nodes, 10, by_value)
        assert [m.x[0].item() for m in nodes] == [1.0, 2.0]


def test_between_jumps_a_follower_is_pulled_to_the_leader_as_it_was_seen():
    pulled = {**FAST, "c1": 0.0, "c2": 0.0, "p2": 0.5}
    with members(following(2, lsgd=pulled), [1.0, 3.0]) as [leader, follower]:
        seen = []

        def has_come():
            in_lockstep([leader, follower], 1, by_value)
            seen.append(follower.x[0].item())
            return seen[-1] < 1.01

        eventually(has_come)
        assert seen == sorted(seen, reverse=True)  # no jump, and not beyond the leader
        assert seen[-1] >= 1.0


def _rounds(nodes):
    in_lockstep(nodes, 1, by_value)
    return True


def test_when_the_leader_ends_the_next_one_leads():
    with members(following(3, lsgd={**FAST, "p2": 0.0}), [1.0, 2.0, 3.0]) as nodes:
        eventually(lambda: _rounds(nodes) and (nodes[2].x < 1.5).all())
        first = nodes[0].adapter.connection.node
        # A farewell reaches who is connected.
        eventually(lambda: set(first.links.values()) == {LinkState.UP})
        nodes[0].adapter.close()
        with torch.no_grad():
            nodes[1].net.weight.fill_(5.0)

        def has_followed():
            in_lockstep(nodes[1:], 1, by_value)
            return (nodes[2].x > 4.9).all()

        eventually(has_followed)
        assert (nodes[1].x == 5.0).all()


def test_two_groups_follow_their_own_leaders_between_jumps_to_that_of_all():
    own = {**FAST, "c1": 1.0, "c2": 0.0, "global_period": 10**6, "p1": 0.0, "p2": 0.0}
    config = following(4, lsgd=own)
    groups = ("a", "a", "b", "b")
    config["nodes"] = [{**n, "group": g} for n, g in zip(config["nodes"], groups, strict=True)]
    with members(config, [1.0, 2.0, 3.0, 4.0]) as nodes:
        wanted = [1.0, 1.0, 3.0, 3.0]
        eventually(lambda: _rounds(nodes) and [m.x[0].item() for m in nodes] == wanted)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_buffers_become_the_mean_of_all_workers_and_nothing_else_is_fetched_for_that(transport):
    def net(value):
        made = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
        with torch.no_grad():
            made[1].running_mean.fill_(value)
        return made

    never = {"local_period": 3, "global_period": 3 * 10**6}
    config = following(
        3, lsgd={**never, "p1": 0.0, "p2": 0.0, "c1": 0.0, "c2": 0.0}, transport=transport
    )
    config["nodes"] = [{**n, "group": n["name"]} for n in config["nodes"]]  # who lead themselves
    nodes = [Member(f"w{value}", config, net=net(float(value))) for value in (1, 2, 3)]
    try:
        before = [member.x for member in nodes]
        eventually(lambda: {LinkState.UP} == {s for m in nodes for s in m.node.links.values()})
        at_once([partial(m.adapter.update_send, float(m.name[1:])) for m in nodes])
        at_once([m.adapter.update_wait for m in nodes])
        for member in nodes:
            assert member.net[1].running_mean == pytest.approx(2.0)
        assert all(torch.equal(m.x, x) for m, x in zip(nodes, before, strict=True))
        for member in nodes:
            report = member.node.report()
            assert report["merges"] == 0
            assert report["bytes_received"] < 100_000  # a model is 370 KB
    finally:
        for member in nodes:
            member.adapter.close()


# Relays


@pytest.mark.parametrize("followers", [6])
def test_what_a_leader_sends_grows_far_slower_than_the_number_of_followers(followers):
    size = 500_000  # 4 MB
    with members(following(followers + 1), range(followers + 1), size=size) as nodes:
        eventually(lambda: _rounds(nodes) and all(m.adapter.leader == "w1" for m in nodes))
        leader, *others = nodes
        before = leader.node.report()["bytes_sent"]
        received = sum(m.node.report()["bytes_received"] for m in others)
        for _ in range(4):
            in_lockstep(nodes, 1, by_value)
        sent = leader.node.report()["bytes_sent"] - before
        received = sum(m.node.report()["bytes_received"] for m in others) - received
        assert received > 2 * followers * size * 8  # most rounds of most followers
        assert sent < 0.75 * received, (sent, received)
        kept_bytes = [m.node.report()["memory"]["kept_bytes"] for m in others]
        assert max(kept_bytes) <= 2 * size * 8  # another one may have led at first


def test_a_crowded_leader_tells_who_has_a_copy(monkeypatch):
    with members(following(3), [1.0]) as [leader], partner_of(leader) as partner:
        leader.round(0.1)
        service = leader.node._snapshots
        fingerprint = leader.adapter._state.layout.fingerprint
        asked = {"algorithm": "lsgd", "keeps": True, "name": "w2", "credit": 16}
        assert isinstance(partner.ask(fetch_of(fingerprint, **asked)), SnapshotHeader)
        partner.answered()  # the only chunk: w2 is a holder now
        eventually(lambda: service._holders.of_late(1, without="w3") == (1, ("w2",)))
        monkeypatch.setattr("dpwa.node.serving.snapshot_service.MOST_READERS", 0)
        answer = partner.ask(fetch_of(fingerprint, **{**asked, "name": "w3"}))
        assert isinstance(answer, Elsewhere)
        assert (answer.version, answer.holders) == (1, ("w2",))
        # Whoever holds it is not sent to itself.
        again = partner.ask(fetch_of(fingerprint, **{**asked, "name": "w2"}))
        assert isinstance(again, SnapshotHeader)


def test_a_copy_is_served_under_the_name_of_its_origin():
    config = following(3)
    with members(config, [1.0, 2.0]) as [leader, follower], partner_of(follower, "w3") as partner:
        eventually(
            lambda: _rounds([leader, follower]) and follower.node.report()["memory"]["kept_bytes"]
        )
        fingerprint = follower.adapter._state.layout.fingerprint
        asked = {"algorithm": "lsgd", "keeps": True, "name": "w3", "credit": 16}
        header = partner.ask(fetch_of(fingerprint, origin="w1", version=1, **asked))
        assert isinstance(header, SnapshotHeader)
        partner.answered()
        late = fetch_of(fingerprint, origin="w1", version=header.version + 1000, **asked)
        assert isinstance(partner.ask(late), NotReady)
        assert isinstance(partner.ask(fetch_of(fingerprint, origin="w9", **asked)), NotReady)


def relayed(partner):
    """Let a follower w1 ask the leader w2, which sends it to w3."""
    fetch = partner.heard(Fetch)
    partner.answer(Elsewhere(request=fetch.request, version=1, holders=("w3",)))


@contextmanager
def follower_of_two():
    """A follower w1; w2, which leads, and w3, which has a copy, are played."""
    config = following(3, timeout_ms=800)
    with (
        members(config, [5.0]) as [follower],
        partner_of(follower, "w2") as leader,
        partner_of(follower, "w3") as holder,
    ):
        eventually(lambda: all(follower.node._threads.tx.reaches(n) for n in ("w2", "w3")))
        news = (("w2", "", 0.01, 2**60, 100, 0.0),)
        leader.ask(NewsMessage(request=1, algorithm="lsgd", news=news))
        follower.adapter.update_send(0.5)
        yield follower, leader, holder


def test_a_copy_of_a_holder_is_kept_and_merged_as_that_of_its_origin():
    with follower_of_two() as (follower, leader, holder):
        relayed(leader)
        fetch = holder.heard(Fetch)
        assert (fetch.origin, fetch.version, fetch.keeps) == ("w2", 1, True)
        holder.serve(fetch, 1.0)
        merge = follower.adapter.update_wait(0.5)
        assert merge is not None
        assert (follower.x == 3.0).all()
        kept = follower.node._context.snapshot_cache
        lease = kept.lease("w2", 1)
        assert lease is not None, "kept under another name than that of its origin"
        lease.release()
        assert merge.peer == "w2"


def test_a_holder_that_has_nothing_is_no_dead_end():
    with follower_of_two() as (follower, leader, holder):
        relayed(leader)
        fetch = holder.heard(Fetch)
        holder.answer(NotReady(request=fetch.request))
        again = leader.heard(Fetch)  # the leader is asked once more
        leader.serve(again, 1.0)
        assert follower.adapter.update_wait(0.5) is not None
        assert (follower.x == 3.0).all()


def test_holders_that_nobody_knows_are_no_dead_end():
    with follower_of_two() as (follower, leader, _):
        fetch = leader.heard(Fetch)
        nobody = ("w7", "w8")
        leader.answer(Elsewhere(request=fetch.request, version=1, holders=nobody))
        leader.serve(leader.heard(Fetch), 1.0)
        assert follower.adapter.update_wait(0.5) is not None


def test_a_leader_that_sends_round_in_circles_costs_no_more_than_the_timeout():
    with follower_of_two() as (follower, leader, holder):
        relayed(leader)
        fetch = holder.heard(Fetch)
        holder.answer(Elsewhere(request=fetch.request, version=1, holders=("w2",)))
        assert follower.adapter.update_wait(0.5) is None
        assert (follower.x == 5.0).all()


def test_no_more_than_two_origins_are_kept():
    kept = SnapshotCache()
    with members(following(2), [1.0]) as [member]:
        member.round(0.1)
        with member.node._context.pool.newest() as snapshot:
            for origin in ("w1", "w2", "w3", "w3"):
                kept.keep(origin, snapshot)
        assert kept.nbytes == 2 * snapshot.data.nbytes
        assert kept.lease("w1", 1) is None
        assert kept.lease("w3", 2) is None
        held = kept.lease("w3", 1)
        with member.node._context.pool.newest() as snapshot:
            kept.keep("w3", snapshot)  # while it is being read: into other memory
        assert kept.lease("w3", 1).snapshot.data is not held.snapshot.data


def test_gossip_with_the_leader_rule_asks_the_leader():
    config = config_of(3, interpolation="leader", loss_window=1, transport="tcp")
    with members(config, [1.0, 2.0, 3.0]) as nodes:

        def have_come():
            gossip(nodes, 5, by_value)
            return max((m.x - 1.0).abs().max() for m in nodes) < 1e-3

        eventually(have_come, 20.0)
        assert (nodes[0].x == 1.0).all()
