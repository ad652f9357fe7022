"""The dead are tried, and that leaves room to call others back."""

import random
from types import SimpleNamespace

import pytest
from support.runtimes import Time

from dpwa.config import load_config
from dpwa.membership.asking import MAX_TRIALS, TICK_S, TRIAL, Asking
from dpwa.membership.context import MembershipContext
from dpwa.membership.member_list import MemberList
from dpwa.policy.members.states import MemberEntry, MemberStatus
from dpwa.transport import calls
from dpwa.transport.link import LinkState

DEAD = 60
OWN = MemberEntry("own", "tcp://127.0.0.1:1", 1)


class SwallowedLink:
    """To an address where nobody says no: it is being connected for ever."""

    state = LinkState.CONNECTING
    problem = ""
    socket = monitor = None

    def __init__(self, context, name, endpoint, keyring):
        pass

    def update(self):
        pass

    def receive(self):
        return None

    def close(self):
        pass


class Member:
    """The membership of a node that knows many dead ones."""

    def __init__(self):
        self.time = Time()
        rng = random.Random(1)
        self.list = MemberList(OWN, self.time, rng, lambda: None)
        handle = SimpleNamespace(
            send_message=lambda *_: None,
            call_soon=lambda act, *given: act(*given),
            state_of=lambda _: LinkState.DOWN,
        )
        context = MembershipContext(
            handle, handle, None, self.time, rng, lambda at: (at,), frozenset(), None, ()
        )
        config = load_config({"join": [OWN.endpoint]}, environ={})
        self.asking = Asking(self.list, config, context, lambda peers: None)
        poller = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
        self.asking.attached(SimpleNamespace(), poller)
        for index in range(DEAD):
            self.list.believe(MemberEntry(f"n{index}", f"tcp://10.0.0.1:{index + 1}", 1))
            self.list.lost(f"n{index}")
        while any(entry.status is not MemberStatus.DEAD for entry in self.list.all_known()):
            self.pass_time()
            self.list.tick()

    def pass_time(self):
        """Let some time pass for a process that is awake."""
        self.time.seconds += TICK_S
        self.list.note_awake()

    def questions(self, purpose):
        """Return where is asked just now, for a purpose."""
        asked = (entry.endpoint for entry in self.list.all_known())
        found = map(self.asking._calls.question_at, asked)
        return [q.endpoint for q in found if q is not None and q.purpose == purpose]


@pytest.fixture
def member(monkeypatch):
    monkeypatch.setattr(calls, "PeerLink", SwallowedLink)
    return Member()


def test_trials_of_the_dead_take_half_of_all_calls_at_most(member):
    counts, tried = [], set()
    for _ in range(round(60.0 / TICK_S)):
        member.pass_time()
        member.asking.tick(0.0)
        found = member.questions(TRIAL)
        counts.append(len(found))
        tried |= set(found)
    assert max(counts) == MAX_TRIALS
    assert len(tried) == DEAD  # each has its turn


def test_who_cannot_be_tried_yet_does_not_wait_longer_for_it(member):
    for _ in range(round(5.0 / TICK_S)):
        member.pass_time()
        member.asking.tick(0.0)
    records = member.list._members._records.values()
    assert sum(record.pause_s > 0.0 for record in records) == len(member.questions(TRIAL))


def test_who_wants_to_join_is_called_at_once_however_many_of_the_dead_are_tried(member):
    for _ in range(round(20.0 / TICK_S)):
        member.pass_time()
        member.asking.tick(0.0)
    places = [f"tcp://10.0.0.2:{port}" for port in range(1, 13)]
    for place in places:
        member.asking.call_back(MemberEntry(place, place, 1), lambda problem: None)
    member.asking.tick(0.0)
    assert all(map(member.asking._calls.question_at, places))
