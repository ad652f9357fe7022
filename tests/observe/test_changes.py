"""Events are what differs between two reports of a node."""

from dataclasses import replace

from support.nodes import config_of

from dpwa.node.node import Node
from dpwa.node.report import GossipReport, MemberReport, MembershipReport
from dpwa.observe.events import KINDS, EventLog, RunEvent, changes


def report_of():
    from dpwa.config import load_config

    with Node("w1", load_config(config_of(3))) as node:
        return node.condition()


BEFORE = report_of()
TIME = 1e9


def found(before, after):
    assert all(event.kind in KINDS for event in changes(before, after, TIME))
    return [(event.kind, event.about) for event in changes(before, after, TIME)]


def after(**changed):
    return replace(BEFORE, **changed)


def with_peer(name, **changed):
    peers = (p._replace(**changed) if p.name == name else p for p in BEFORE.peers)
    return after(peers=tuple(peers))


def with_members(**statuses):
    members = (MemberReport(n, "tcp://h:1", s) for n, s in statuses.items())
    return after(membership=MembershipReport(tuple(members)))


def test_nothing_happens_between_equal_reports():
    assert found(BEFORE, BEFORE) == []


def test_a_peer_joins_is_lost_and_comes_back():
    alive = with_peer("w2", health="alive", problem="")
    lost = with_peer("w2", health="unreachable", problem="the connection was lost")
    assert found(BEFORE, alive) == [("joined", "w2")]
    assert found(alive, lost) == [("unreachable", "w2")]
    assert found(lost, alive) == [("joined", "w2")]


def test_a_peer_that_was_never_there_is_no_event():
    assert found(BEFORE, with_peer("w2", problem="nobody listens", heard_s=None)) == []


def test_a_goodbye_is_told_without_the_lost_connection():
    gone = with_peer("w3", health="finished", problem="the connection was lost")
    assert [(e.kind, e.text) for e in changes(BEFORE, gone, TIME)] == [("finished", "")]
    gone = with_peer("w3", health="left", problem="broken off by KeyError")
    assert [(e.kind, e.text) for e in changes(BEFORE, gone, TIME)] == [
        ("left", "broken off by KeyError")
    ]


def test_quarantine_begins_and_ends():
    there = with_peer("w2", quarantined=True)
    assert found(BEFORE, there) == [("quarantined", "w2")]
    assert found(there, BEFORE) == [("released", "w2")]


def test_what_is_refused_is_counted_by_reason():
    refused = after(refused={**BEFORE.refused, "malformed": 3})
    assert [e.text for e in changes(BEFORE, refused, TIME)] == ["3 messages that cannot be read"]


def test_divergence_and_skipped_snapshots_are_about_the_node_itself():
    assert found(BEFORE, after(diverged=True, rounds_skipped=2)) == [
        ("diverged", "w1"),
        ("skipped", "w1"),
    ]


def test_a_few_skipped_snapshots_of_many_are_no_event():
    busy = GossipReport(steps=BEFORE.gossip.steps + 100)
    assert found(BEFORE, after(gossip=busy, rounds_skipped=25)) == []
    many = changes(BEFORE, after(gossip=busy, rounds_skipped=26), TIME)
    assert [event.text for event in many] == ["26 of 100 snapshots were not published"]


def test_a_checkpoint_is_told_once():
    state = {"state": {"checkpoints": {"written": 1, "newest": "c-1"}}}
    assert found(BEFORE, after(**state)) == [("checkpoint", "w1")]
    assert found(after(**state), after(**state)) == []


def test_members_tell_who_comes_and_goes_and_old_tombstones_do_not():
    alive = with_members(w1="alive", w2="alive", w9="dead")
    assert found(BEFORE, alive) == [("joined", "w2")]
    assert found(alive, with_members(w1="alive", w2="suspect", w9="dead")) == [("suspect", "w2")]
    assert found(alive, with_members(w1="alive", w2="dead", w9="dead")) == [("dead", "w2")]


def test_the_list_of_events_is_bounded_and_its_numbers_rise():
    log = EventLog()
    for _ in range(1200):
        log.add_events([RunEvent(TIME, "w1", "joined", "w2")])
    numbers = [event.number for event in log.after(0)]
    assert numbers == list(range(701, 1201))
    assert [event.number for event in log.after(1198)] == [1199, 1200]


def test_of_many_checkpoints_the_newest_of_each_node_is_kept_so_that_other_events_are():
    log = EventLog()
    log.add_events([RunEvent(TIME, "w1", "joined", "w2")])
    for second in range(1000):
        log.add_events([RunEvent(TIME + second, "w1", "checkpoint", "w1", f"checkpoint-{second}")])
    assert [event.text for event in log.after(0)] == ["", "checkpoint-999"]
