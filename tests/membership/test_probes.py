"""A member is asked by another one for the sake of one that does not hear from it."""

import random
import time
from types import SimpleNamespace

import pytest
from support.inside import member_list_of
from support.keys import key_folders
from support.open_cluster import cluster
from support.strangers import question

from dpwa.membership import service
from dpwa.membership.member_list import MemberList
from dpwa.policy.members.states import MemberEntry
from dpwa.virtual_network import VirtualClock
from dpwa.wire.members import ProbeAnswer, ProbeRequest, WhoIs


@pytest.mark.parametrize("heard_within_s", [60.0, -1.0])  # the last message counts; no message does
def test_a_node_says_that_it_hears_from_a_member_that_it_is_asked_for(monkeypatch, heard_within_s):
    monkeypatch.setattr(service, "HEARD_WITHIN_S", heard_within_s)
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        life = member_list_of(b).own.incarnation
        request = ProbeRequest(request=3, target="b", incarnation=life)
        answer = question(a.node.endpoint, request, None)
        assert answer == ProbeAnswer(request=3, target="b", incarnation=life)


def pass_time(members, clock, seconds):
    for _ in range(int(10 * seconds) + 1):
        clock.move_to(clock.now() + 0.1)
        members.tick()


def test_a_member_may_have_a_few_asked_at_once_and_none_of_them_twice(monkeypatch):
    monkeypatch.setattr(service, "HEARD_WITHIN_S", -1.0)
    told, said, clock = [], [], VirtualClock()
    members = MemberList(MemberEntry("a", "at-a", 1), clock, random.Random(1), lambda: None)
    members.receive_entries([MemberEntry(f"n{index}", f"at-n{index}", 1) for index in range(30)])
    started = service.Probes(members, SimpleNamespace(send_message=lambda to, *_: told.append(to)))

    def ask(sender, index):
        started.start(
            sender, ProbeRequest(request=1, target=f"n{index}", incarnation=1), said.append
        )

    for sender in (b"b", b"c", b"d"):
        for index in range(10):
            ask(sender, index)
            ask(sender, index)
    assert told == [f"n{index}" for _ in range(2) for index in range(8)]
    members.heard_from("n3", 1)
    assert started.go_on()
    assert [answer.target for answer in said] == ["n3"] * 2
    pass_time(members, clock, service.PROBE_WITHIN_S)
    assert not started.go_on()


@pytest.mark.parametrize(("target", "later"), [("b", -1), ("b", 1), ("d", 0)])
def test_it_says_nothing_of_one_that_it_does_not_know_or_of_another_life(target, later):
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        life = member_list_of(b).own.incarnation + later
        request = ProbeRequest(request=3, target=target, incarnation=life)
        answer = question(a.node.endpoint, request, None, WhoIs(request=4))
        assert answer.request == 4


def test_a_silent_member_that_others_hear_is_not_suspected(monkeypatch, tmp_path):
    key_folders(tmp_path, "a", "b", "c")
    with cluster(security="curve") as nodes:
        a = nodes.add("a", keys=str(tmp_path / "a"))
        at_a = f"a@{a.node.endpoint}"
        b = nodes.add("b", at_a, keys=str(tmp_path / "b"))
        nodes.add("c", at_a, keys=str(tmp_path / "c"))
        nodes.agree()
        members = member_list_of(a)
        # The way from b to a is broken, and nobody says so: a hears nothing of b any more.
        heard_from = members.heard_from
        monkeypatch.setattr(
            members, "heard_from", lambda name, life: name == b.name or heard_from(name, life)
        )
        end = time.monotonic() + 8.0  # twice `suspect_after_s`
        while time.monotonic() < end:
            assert members.entry("b").status.name == "ALIVE"
            assert members.entry("b").version == 0  # it never had to contradict
            time.sleep(0.1)
