"""How much of what it knows a member tells in one message."""

import random

import pytest

from dpwa.membership.member_list import ALL_ENTRIES_PER_S, NEWS_ENTRIES, MemberList
from dpwa.policy.members.states import MemberEntry
from dpwa.virtual_network import VirtualClock
from dpwa.wire.members import unpack_entries

PEERS = 3 * ALL_ENTRIES_PER_S
OTHER_VIEW = b"other"


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def members(clock):
    """A list of many members."""
    members = MemberList(MemberEntry("own", "at-own", 1), clock, random.Random(1), lambda: None)
    for index in range(PEERS):
        members.believe(MemberEntry(f"n{index}", f"at-{index}", 1))
    return members


def told(members, digest):
    """How many entries are told to a node with this view."""
    packed = members.pack_news("n0", digest)
    return packed.count(b"at-")


def pass_time(members, clock, seconds):
    """Let time pass for a process that is awake."""
    for _ in range(round(5 * seconds)):
        clock.move_to(clock.now() + 0.2)
        members.note_awake()


def test_who_knows_the_same_is_told_some(members):
    assert told(members, members.digest()) == NEWS_ENTRIES


def test_who_has_just_come_is_told_all_each_time(members):
    assert [told(members, b"") for _ in range(3)] == [PEERS + 1] * 3


def test_who_knows_others_is_told_all_now_and_then(members, clock):
    first = [told(members, OTHER_VIEW) for _ in range(3)]
    assert first == [PEERS + 1, NEWS_ENTRIES, NEWS_ENTRIES]
    pass_time(members, clock, PEERS / ALL_ENTRIES_PER_S - 1.0)
    assert told(members, OTHER_VIEW) == NEWS_ENTRIES
    pass_time(members, clock, 1.2)
    assert told(members, OTHER_VIEW) == PEERS + 1


def test_who_knows_others_is_told_all_however_many_come_meanwhile(members, clock):
    assert told(members, OTHER_VIEW) == PEERS + 1
    counts = []
    for _ in range(round(2 * PEERS / ALL_ENTRIES_PER_S)):
        pass_time(members, clock, 0.6)
        assert told(members, b"") == PEERS + 1
        counts.append(told(members, OTHER_VIEW))
    assert counts.count(PEERS + 1) == 1


def test_a_message_with_all_is_read_again(clock):
    members = MemberList(MemberEntry("own", "tcp://h:1", 1), clock, random.Random(1), lambda: None)
    members.believe(MemberEntry("n0", "tcp://h:2", 1))
    assert {entry.name for entry in unpack_entries(members.pack_news("n0", b""))} == {"own", "n0"}
