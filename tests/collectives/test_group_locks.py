"""The lock of a group: Ctrl-C leaves it free, and who waits for messages checks under it."""

import contextlib
import random
import signal
from types import SimpleNamespace

import pytest

from dpwa.collectives.call import Call
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.collectives.operations import Operation
from dpwa.collectives.views import ENTERED, PhaseRecords
from dpwa.policy.group_views import Member
from dpwa.runtime import SYSTEM
from dpwa.wire.collecting import Vote

OWN = Member("w1", b"own-life")
RANKS = ("w1", "w2")
INTERRUPTIONS = 1500
SHORTEST_S, LONGEST_S = 20e-6, 120e-6


class InterruptedInTheMiddleError(Exception):
    """As KeyboardInterrupt, but pytest does not end for it."""


def contacts_of(own, said):
    def tell(peer, message):
        said.append((peer, message))

    return Contacts(own, lambda: RANKS, tell, lambda peer: None, may_map=False)


@pytest.fixture
def group():
    told = []
    with Contacts(OWN, lambda: RANKS, lambda *_: None, told.append, may_map=False) as contacts:
        yield Group("", RANKS, contacts, SYSTEM)


@pytest.fixture
def interrupt_in():
    """Raise `InterruptedInTheMiddleError` in this thread, so many seconds from now."""

    def interrupt(number, frame):
        raise InterruptedInTheMiddleError

    former = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def test_a_trainer_that_is_interrupted_while_it_polls_leaves_the_group_free(group, interrupt_in):
    rng = random.Random(1)
    for _ in range(INTERRUPTIONS):
        with contextlib.suppress(InterruptedInTheMiddleError):
            interrupt_in(rng.uniform(SHORTEST_S, LONGEST_S))
            while group.decision is None:
                group.records(ENTERED)
        assert not group.changed._is_owned()


def test_who_waits_for_messages_checks_once_each_time_and_under_the_lock(group):
    are_under_lock = []

    def check():
        are_under_lock.append(group.changed._is_owned())
        return len(are_under_lock) if len(are_under_lock) == 3 else None

    node = SimpleNamespace(contacts=None, pull_source=None, runtime=SYSTEM)
    assert Call(node, group, Operation("barrier"), 60.0).wait_for(check) == 3
    assert are_under_lock == [True] * 3


class ContactsWithBoard:
    """Of a node that has no board, and reads that of w2."""

    def incarnation(self, name):
        return b"life-of-" + name.encode()

    def board_of(self, name, tag):
        return self.incarnation(name), self

    def read_slot(self, phase):
        return None


def test_a_board_that_this_node_only_reads_may_be_posted_on():
    records = PhaseRecords("", ContactsWithBoard())
    assert not records.has_boards
    records.on_board("w2", ENTERED)
    assert records.has_boards


def test_two_who_have_left_do_not_answer_each_other_for_ever():
    said, groups = [], {}
    with contextlib.ExitStack() as stack:
        for name in RANKS:
            contacts = stack.enter_context(contacts_of(Member(name, name.encode() * 4), said))
            groups[name] = Group("", RANKS, contacts, SYSTEM)
            groups[name].enter(b"")
        for group in groups.values():
            group.leave_group()
        heard = 0
        while said and heard < 100:
            peer, message = said.pop(0)
            if isinstance(message, Vote):
                groups[peer].receive_message(message)
                heard += 1
    assert heard == len(RANKS)
