"""A member is asked by another one for the sake of one that does not hear from it."""

import time

import pytest
from support.open_cluster import cluster
from support.strangers import question

from dpwa.membership import probes
from dpwa.wire.members import ProbeAnswer, ProbeRequest


def probe(at, of, incarnation=None):
    """What a node answers that is asked to ask another one."""
    if incarnation is None:
        incarnation = of._members._member_list.own.incarnation
    request = ProbeRequest(request=3, name=of.name, incarnation=incarnation)
    return question(at.node.endpoint, request, None, timeout_s=1.5)


@pytest.mark.parametrize("heard_within_s", [60.0, -1.0])  # the last message counts; no message does
def test_a_node_says_that_it_hears_from_a_member_that_it_is_asked_for(monkeypatch, heard_within_s):
    monkeypatch.setattr(probes, "HEARD_WITHIN_S", heard_within_s)
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        answer = probe(a, b)
        assert answer == ProbeAnswer(
            request=3, name="b", incarnation=b._members._member_list.own.incarnation
        )


def test_it_says_nothing_of_one_that_it_does_not_know_or_of_an_earlier_life():
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        with pytest.raises(AssertionError, match="still not so"):
            probe(a, b, incarnation=1)


def test_a_silent_member_that_others_hear_is_not_suspected(monkeypatch):
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.add("c", "a")
        nodes.agree()
        members = a._members._member_list
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
