"""What anybody who reaches a node's port can say, and cannot do to the collectives of its group."""

import os
import threading
import time

import pytest
import zmq
from support.collective_nodes import collective_nodes, met_nodes

from dpwa.collectives.collectives import MAX_TAGS
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.entries import Contribution
from dpwa.collectives.views import ENTERED, READY
from dpwa.data.payload import Payload
from dpwa.errors import CollectiveError, LeftBehindError, PeerLost
from dpwa.policy.group_views import VIEW_ID_BYTES, Member
from dpwa.transport.link import LinkState
from dpwa.wire import limits
from dpwa.wire.collecting import Hello, Post
from dpwa.wire.messages import encode

HEARD_WITHIN_S = 30.0


@pytest.fixture
def forge():
    """Send messages to w1 of some nodes, and wait until it has heard them."""
    context = zmq.Context()

    def send(nodes, *messages):
        contacts, is_heard = nodes["w1"].collectives.contacts, threading.Event()
        hear = contacts.receive_hello

        def hear_last(message):
            hear(message)
            if message.name == "last":
                is_heard.set()

        contacts.receive_hello = hear_last
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{nodes.config['nodes'][0]['port']}")
            for message in (*messages, hello("last")):
                dealer.send(encode(message))
            assert is_heard.wait(HEARD_WITHIN_S)
        contacts.receive_hello = hear

    yield send
    context.term()


def hello(name, incarnation=None):
    life = incarnation or os.urandom(limits.INCARNATION_BYTES)
    fields = {"folder": "", "nonce": bytes(16), "is_mapped": False}
    return Hello(request=0, name=name, incarnation=life, **fields)


def post(tag, member, view, number, phase, record):
    by = {"name": member.name, "incarnation": member.incarnation}
    fields = {"view": view, "number": number, "phase": phase, "record": record}
    return Post(request=0, tag=tag, **by, **fields)


def post_of_w2(nodes, phase, record):
    """What w2 could say of the collective that w1 calls next."""
    group, own = nodes["w1"].collectives.group(""), nodes["w2"].collectives.contacts.own
    return post("", own, group.view.identity, group.number, phase, record)


def is_all_there(nodes):
    """Let all call until everybody takes part."""

    def call(node):
        while True:
            try:
                if node.all_reduce(1)[1] == len(nodes.names):
                    return True
            except CollectiveError:
                pass

    return all(nodes.each(call).values())


# Names


def test_an_introduction_under_the_name_of_a_connected_node_changes_nothing(forge):
    with met_nodes(2) as nodes:
        first = nodes.begin("w1", lambda node: node.all_reduce(1))
        forge(nodes, hello("w2"))
        life = nodes["w2"].collectives.contacts.own.incarnation
        assert nodes["w1"].collectives.contacts.incarnation("w2") == life
        assert nodes["w2"].all_reduce(1) == first.result(60) == (2, 2)
        assert nodes.each(lambda node: node.all_reduce(1)) == {"w1": (2, 2), "w2": (2, 2)}


def test_an_introduction_counts_as_soon_as_the_life_before_it_is_gone():
    """That of a restarted node may be there before the end of its former connection is."""
    old, new, third = b"old-life", b"new-life", b"3rd-life"
    own = Member("w1", b"own-life")
    with Contacts(
        own, lambda: ("w1", "w2"), lambda *_: None, lambda _: None, may_map=False
    ) as contacts:
        contacts.link_changed("w2", LinkState.UP)
        contacts.receive_hello(hello("w2", old))
        contacts.receive_hello(hello("w2", new))
        assert contacts.incarnation("w2") == old
        contacts.link_changed("w2", LinkState.DOWN)
        contacts.link_changed("w2", LinkState.UP)
        assert contacts.incarnation("w2") == new
        contacts.link_changed("w2", LinkState.DOWN)
        contacts.link_changed("w2", LinkState.UP)
        contacts.receive_hello(hello("w2", third))
        assert contacts.incarnation("w2") == third


# Tags


@pytest.mark.parametrize("name", ["nobody", "w2"])
def test_tags_that_others_name_do_not_use_up_those_of_this_node(forge, name):
    with met_nodes(2) as nodes:
        tags = [f"x{index}" for index in range(3 * MAX_TAGS)]
        life = Member(name, os.urandom(limits.INCARNATION_BYTES))
        view = bytes(VIEW_ID_BYTES)
        forge(nodes, *(post(tag, life, view, 0, ENTERED, b"") for tag in tags))
        for tag in ("", "mine", "another"):
            results = nodes.each(lambda node: node.all_reduce(1, tag=tag))  # noqa: B023
            assert results == {"w1": (2, 2), "w2": (2, 2)}
        known = nodes["w1"].collectives.report()["members"]
        assert len(known) <= 2 * MAX_TAGS + 2
        assert name == "w2" or set(known) == {"", "mine", "another"}


# Records


def entry(call, **fields):
    """The record of a call that is right, but for some fields."""
    layout = Payload(1.0).layout
    form = {"fingerprint": layout.fingerprint, "leaves": 1} if call == REDUCE else {}
    return Contribution(call, **{**form, **fields}).pack()


def reduce(node):
    return node.all_reduce(1.0)


def gather(node):
    return node.all_gather("plain")


REDUCE, GATHER = "all_reduce sum", "all_gather"
NONSENSE = {
    "nothing": (reduce, ENTERED, b""),
    "no message": (reduce, ENTERED, b"\xc1"),
    "numbers that ask to join": (reduce, READY, b"\x91\x01"),
    "a short value": (reduce, ENTERED, entry(REDUCE, nbytes=8, inline=bytes(7))),
    "no value": (reduce, ENTERED, entry(REDUCE, nbytes=8)),
    "a short object": (gather, ENTERED, entry(GATHER, nbytes=9, inline=bytes(5))),
    "no object": (gather, ENTERED, entry(GATHER, nbytes=9)),
    "an object without end": (gather, ENTERED, entry(GATHER, nbytes=2**63 - 1)),
}


def after_w1(nodes, call):
    """Have w2 call later: else what it says itself may come before w1 has looked."""

    def called(node):
        if node is nodes["w2"]:
            time.sleep(0.5)
        return call(node)

    return called


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_record_that_is_nonsense_costs_its_reader_one_collective_at_most(forge, nonsense):
    call, phase, record = NONSENSE[nonsense]
    with collective_nodes(2, collective_timeout_s=2.0) as nodes:
        expected = nodes.each(call)
        forge(nodes, post_of_w2(nodes, phase, record))
        outcomes = nodes.outcomes(after_w1(nodes, call))
        assert type(outcomes["w1"]) is LeftBehindError, outcomes
        assert "another node broke the protocol" in str(outcomes["w1"])
        is_told = type(outcomes["w2"]) is PeerLost
        assert is_told or (phase == READY and outcomes["w2"] == expected["w2"])
        assert is_all_there(nodes)


def test_an_object_that_is_none_costs_its_reader_one_result(forge):
    with collective_nodes(2) as nodes:
        expected = nodes.each(gather)
        forged = entry(GATHER, nbytes=16, inline=b"\xff" * 16)
        forge(nodes, post_of_w2(nodes, ENTERED, forged))

        outcomes = nodes.outcomes(after_w1(nodes, gather))
        assert type(outcomes["w1"]) is CollectiveError
        assert "broke the protocol" in str(outcomes["w1"])
        assert outcomes["w2"] == expected["w2"]
        assert is_all_there(nodes)
