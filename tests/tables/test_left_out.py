"""When a member counts as lost, and what one hears who was left out; in a time of its own."""

import pytest
from support.runtimes import Time

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.errors import TableLostError
from dpwa.policy.ballots import STALLED_S
from dpwa.policy.group_views import GroupView, Member
from dpwa.tables.channels import UNREACHABLE_S
from dpwa.tables.directory import Told
from dpwa.tables.engine import DOUBT_EVERY_S, RECONNECTED_S, Engine, Settings
from dpwa.tables.pending import PendingOperations
from dpwa.tables.specs import TableSpec
from dpwa.transport.link import LinkState
from dpwa.wire.collecting import Hello, Vote
from dpwa.wire.tables import TableHoldings, TableSeen

RANKS = ("w1", "w2", "w3")
OWN = Member("w1", b"life--w1")
STARTUP_S = 60.0
STEP_S = 0.05


class Node:
    """The engine of w1, without a thread, and the others as far as it hears of them."""

    def __init__(self):
        self.time, self.told = Time(), []
        self.contacts = Contacts(OWN, lambda: RANKS, self._tell, lambda peer: None, may_map=False)
        self.group = Group("", RANKS, self.contacts, self.time)
        self.pending = PendingOperations(self.group.view, self.time)
        settings = Settings(self.time, STARTUP_S, lambda answer: None, lambda: None)
        self.engine = Engine(self.pending, self.group, self.contacts, self._tell, settings)
        self.group.watch(self.engine.view_changed)
        self.engine.view_changed(self.group.view)
        self.step()

    def _tell(self, peer, message, payload=None):
        self.told.append((peer, message))

    def step(self, seconds=0.0):
        """Let all that has come be done, after so much time."""
        self.time.seconds += seconds
        while not self.engine._inbox.empty():
            self.engine._do(self.engine._inbox.get())
        self.engine._do(self.engine._go_on)

    def wait(self, seconds):
        """Let time pass; tell whether a ballot is held."""
        end = self.time.seconds + seconds
        while self.time.seconds < end and not self.has_doubts:
            self.step(STEP_S)
        return self.has_doubts

    @property
    def has_doubts(self):
        return self.group.ballot is not None

    def heard_of(self, *names, **told):
        """Let others tell what they have: they are there, and have connected to this node."""
        for name in names:
            self.meet(name)
            self.engine._hear_told(name, Told({}, **told))

    def meet(self, name):
        life = b"life--" + name.encode()
        fields = {"folder": "", "nonce": bytes(16), "is_mapped": False}
        self.contacts.receive_hello(Hello(request=0, name=name, incarnation=life, **fields))

    def lose(self, *names):
        for name in names:
            self.contacts.link_changed(name, LinkState.DOWN)
            self.engine.link_changed(name)
        self.step()

    def connect(self, *names):
        for name in names:
            self.contacts.link_changed(name, LinkState.UP)
            self.engine.link_changed(name)
        self.step()

    def answer(self, name, number):
        view = self.group.view.identity
        life = b"life--" + name.encode()
        signed = {"request": 0, "name": name, "incarnation": life, "view": view}
        self.engine._mail.admit(TableSeen(**signed, number=number, wants=False))

    def enter(self, *names):
        """Go on in a view of these."""
        lives = {"w1": OWN.incarnation}
        members = [Member(n, lives.get(n, b"life--" + n.encode())) for n in names]
        with self.group.lock:
            self.group.enter_view(GroupView(tuple(members), self.group.number + 1), 1)
        self.step()


@pytest.fixture
def node():
    made = Node()
    yield made
    made.contacts.close()


@pytest.fixture
def begun(node):
    """The same, as soon as the others have connected, and have told and seen all."""
    node.connect("w2", "w3")
    node.heard_of("w2", "w3")
    for name in ("w2", "w3"):
        node.answer(name, 1)
    node.step()
    assert node.pending.present.is_ready
    return node


def test_a_member_that_starts_late_is_not_doubted_for_the_time_before_it_was_there(node):
    node.connect("w2")
    node.heard_of("w2")
    node.answer("w2", 1)
    assert not node.wait(4.0)
    node.heard_of("w3")  # it has connected to this node, but this node not to it
    assert not node.wait(3.0)
    node.told.clear()
    node.connect("w3")
    assert "w3" in [peer for peer, told in node.told if isinstance(told, TableHoldings)]
    assert not node.wait(STALLED_S - 3 * STEP_S)
    assert node.wait(DOUBT_EVERY_S + 6 * STEP_S)  # now it has not answered for too long


def test_a_member_that_never_connects_back_is_doubted_in_the_end(node):
    node.connect("w2")
    node.heard_of("w2", "w3")
    node.answer("w2", 1)
    assert not node.wait(STALLED_S - 3 * STEP_S)
    assert node.wait(DOUBT_EVERY_S + 6 * STEP_S)


def test_a_member_that_answers_is_not_doubted_though_it_takes_nothing_yet(node):
    node.connect("w2", "w3")
    node.heard_of("w2", "w3")
    node.answer("w2", 1)
    for _ in range(int(10 * STALLED_S)):
        assert not node.wait(1.0)
        node.answer("w3", 0)


def test_who_was_there_and_is_gone_before_the_first_view_is_doubted_when_all_others_are_there(node):
    node.connect("w2", "w3")
    node.meet("w3")
    node.answer("w3", 1)  # it uses tables, and dies before it has told of its own
    node.lose("w3")
    assert not node.wait(2 * STALLED_S)  # w2 has still to come
    node.heard_of("w2")
    assert node.wait(UNREACHABLE_S + DOUBT_EVERY_S + 4 * STEP_S)


def test_a_process_that_is_gone_and_has_not_used_tables_is_waited_for(node):
    node.connect("w2", "w3")
    node.meet("w3")
    node.lose("w3")
    node.heard_of("w2")
    node.answer("w2", 1)
    assert not node.wait(STARTUP_S / 2)


def cut_off_as_all_begin(node):
    node.connect("w2", "w3")
    node.meet("w3")
    node.answer("w3", 1)
    node.heard_of("w2")
    node.answer("w2", 1)
    node.lose("w2", "w3")


def test_who_cannot_reach_most_others_waits_for_them_until_its_user_is_told(node):
    cut_off_as_all_begin(node)
    assert not node.wait(STARTUP_S + 5.0)
    node.engine.wait_no_longer()
    assert node.wait(DOUBT_EVERY_S)


def test_a_user_that_is_told_earlier_makes_nobody_begin_earlier(node):
    node.connect("w2")
    node.engine.wait_no_longer()
    assert not node.wait(STARTUP_S - 2 * STEP_S)
    assert node.wait(DOUBT_EVERY_S + 4 * STEP_S)


def test_who_is_left_alone_before_the_first_view_begins_none_until_its_user_is_told(node):
    cut_off_as_all_begin(node)
    node.enter("w1")
    assert not node.wait(2 * STARTUP_S)
    assert not node.pending.present.is_ready
    node.engine.wait_no_longer()
    node.step()
    assert node.pending.present.is_ready


def test_a_member_whose_connection_is_gone_is_doubted_at_once(begun):
    begun.contacts.link_changed("w3", LinkState.DOWN)
    assert not begun.wait(UNREACHABLE_S - STEP_S)
    assert begun.wait(DOUBT_EVERY_S + 4 * STEP_S)


def test_what_a_node_has_slept_through_is_not_held_against_the_others(begun):
    begun.engine.make(0, TableSpec(rows=3))
    assert any(peer == "w3" for peer, _ in begun.told)
    begun.step(20 * STALLED_S)
    assert not begun.has_doubts
    for name in ("w2", "w3"):
        begun.answer(name, 2)
    assert not begun.wait(2 * STALLED_S)


def test_a_ballot_waits_for_a_member_that_has_not_been_reached_yet(node):
    node.connect("w2")
    node.heard_of("w2", "w3")
    node.group.doubt()
    _vote(node, "w2", ())
    _pass(node, STALLED_S - STEP_S)
    assert node.has_doubts
    assert node.group.ballot.suspects == set()
    _pass(node, 2 * STEP_S)
    assert node.group.ballot.suspects == {"w3"}


@pytest.mark.parametrize("slept_s", [STALLED_S, 0.0])
@pytest.mark.parametrize("left", [("w1",), ("w1", "w2")])
def test_who_has_stood_still_and_finds_all_others_gone_says_so(begun, slept_s, left):
    begun.step(slept_s)
    begun.enter(*left)
    if slept_s and left == ("w1",):  # else there is somebody who has not gone on without it
        with pytest.raises(TableLostError, match=r"w1 was stopped .* can no longer reach w2, w3"):
            begun.pending.raise_left_out()
    begun.pending.raise_left_out()  # once


def test_who_has_stood_still_and_has_begun_a_view_with_others_since_knows_that_they_are_there(
    begun,
):
    begun.step(STALLED_S)
    begun.enter("w1", "w2")
    begun.heard_of("w2")
    assert begun.pending.present.is_ready
    begun.enter("w1")
    begun.pending.raise_left_out()


def test_who_has_stood_still_gives_its_connections_time_to_come_back(begun):
    begun.step(STALLED_S)
    begun.contacts.link_changed("w3", LinkState.DOWN)
    assert not begun.wait(RECONNECTED_S - STEP_S)
    assert begun.wait(DOUBT_EVERY_S + 4 * STEP_S)


@pytest.mark.parametrize(("passed", "missed"), [(0, 0), (1, 1), (3, 3)])
def test_who_was_left_out_is_told_if_the_others_have_passed_barriers_without_it(
    begun, passed, missed
):
    begun.group.leave_group()
    begun.enter("w1", "w2", "w3")
    begun.heard_of("w2", "w3", passed=passed)
    begun.step()
    assert begun.pending.present.is_ready
    if missed:
        with pytest.raises(TableLostError, match=f"have passed {missed} barriers"):
            begun.pending.raise_left_out()
    begun.pending.raise_left_out()


def test_who_was_left_out_and_finds_nobody_who_was_not_says_so(begun):
    begun.engine.make(0, TableSpec(rows=3))
    begun.group.leave_group()
    begun.enter("w1", "w3")
    begun.heard_of("w3")
    with pytest.raises(TableLostError, match=r"no longer reach w2, w3\. These nodes may"):
        begun.pending.raise_left_out()
    assert begun.pending.present.is_ready
    begun.pending.raise_left_out()


def test_a_worker_that_was_started_again_begins_where_the_others_are(node):
    node.group.leave_group()  # they have told it that it is of no view
    node.enter("w1", "w2", "w3")
    node.connect("w2", "w3")
    node.heard_of("w2", "w3", passed=7)
    node.step()
    assert node.pending.present.passed == 7
    node.pending.raise_left_out()


def test_who_is_left_out_as_all_begin_is_told_if_they_have_passed_barriers_since(node):
    node.connect("w2", "w3")
    node.heard_of("w2")
    node.group.leave_group()
    node.enter("w1", "w2", "w3")
    node.heard_of("w2", "w3", passed=2)
    with pytest.raises(TableLostError, match="have passed 2 barriers"):
        node.pending.raise_left_out()
    assert node.pending.present.passed == 2


def _vote(node, name, suspects):
    view, number = node.group.key
    signed = {"request": 0, "tag": "", "name": name, "incarnation": b"life--" + name.encode()}
    fields = {"view": view, "number": number, "suspects": suspects, "entered": False}
    rest = {"ready": False, "expired": False, "seen": (), "join_requests": ()}
    node.group.receive_message(Vote(**signed, **fields, **rest))


def _pass(node, seconds):
    """Let the network thread look at a ballot for so long."""
    end = node.time.seconds + seconds
    while node.time.seconds < end and node.group.ballot is not None:
        node.time.seconds += STEP_S
        node.group.tick(node.time.seconds)
