"""What a node takes of lives and views that it has not met yet, or not any more."""

import pytest

from dpwa.clock import SystemClock
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import ENTERED, READY, Group
from dpwa.policy.views import VIEW_ID_BYTES, Member
from dpwa.wire.collecting import Hello, Outside, Post, Vote

RANKS = ("w1", "w2", "w3")
OWN = Member("w1", b"own-life")
OLD, NEW = b"old-life", b"new-life"


@pytest.fixture
def told():
    """What the node says, with the peers that it says it to."""
    return []


@pytest.fixture
def contacts(told):
    def tell(peer, message):
        told.append((peer, message))

    with Contacts(OWN, lambda: RANKS, tell, lambda peer: None, may_map=False) as made:
        yield made


@pytest.fixture
def group(contacts):
    """A group in which the node is alone."""
    made = Group("", RANKS, contacts, SystemClock())
    made.start_alone()
    return made


def hello(incarnation, name="w3"):
    fields = {"folder": "", "nonce": bytes(16), "is_mapped": False}
    return Hello(request=0, name=name, incarnation=incarnation, **fields)


def test_a_life_is_gone_when_its_connection_is_or_another_has_come(contacts):
    assert not contacts.is_gone("w3", OLD)
    contacts.link_changed("w3", is_up=True)
    contacts.hear(hello(OLD))
    assert not contacts.is_gone("w3", OLD)
    contacts.link_changed("w3", is_up=False)
    assert contacts.is_gone("w3", OLD)
    contacts.hear(hello(NEW))
    assert contacts.is_gone("w3", OLD)
    assert not contacts.is_gone("w3", NEW)


@pytest.mark.parametrize("is_up", [True, False])
def test_a_life_that_others_have_let_in_before_it_was_met_is_not_gone(contacts, is_up):
    contacts.link_changed("w3", is_up=True)
    contacts.hear(hello(OLD))
    contacts.link_changed("w3", is_up=is_up)
    assert not contacts.is_gone("w3", NEW)


def test_a_node_that_is_met_hears_of_a_collective_only_if_it_has_part(group, told):
    group.enter(b"record")
    told.clear()
    group.contact_changed("w3")
    assert not any(isinstance(message, Post) for _, message in told)


def test_a_first_collective_is_told_to_members_as_they_are_met(contacts, told):
    group = Group("", RANKS, contacts, SystemClock())
    group.enter(b"record")
    told.clear()
    group.contact_changed("w3")
    assert [(peer, message.phase) for peer, message in told] == [("w3", ENTERED)]


@pytest.mark.parametrize(("number", "asks"), [(0, False), (1, True)])
def test_who_hears_that_others_are_further_asks_them_how_the_collective_ended(
    contacts, told, number, asks
):
    """Somebody may have stopped when it had told only some of the others that it is ready."""
    group = Group("", RANKS, contacts, SystemClock())
    group.enter(b"record")
    group.ready(b"record")
    fields = {"view": group.view.identity, "number": number, "phase": ENTERED, "record": b"record"}
    group.hear_post(Post(request=0, tag="", name="w2", incarnation=OLD, **fields))
    group.look_around()
    assert any(isinstance(message, Vote) for _, message in told) == asks


def outside(size):
    fields = {"view": bytes(VIEW_ID_BYTES), "number": 0, "size": size, "first": "w2"}
    return Outside(request=0, tag="", name="w3", incarnation=NEW, **fields)


@pytest.mark.parametrize(("size", "moves"), [(1, False), (2, True)])
def test_the_smaller_view_gives_itself_up_before_the_next_collective(group, size, moves):
    group.hear_outside(outside(size))
    group.begin()
    assert group.is_outside == moves
    assert not group.told()  # it goes by itself


def test_who_has_been_let_in_is_no_reason_to_move(group):
    """It may have spoken of the larger view before this node has come to it."""
    group.begin()
    group.enter(b"record")
    group.hear_outside(outside(2))
    group.ready(b"record")
    assert set(group.records(READY)) == {"w1"}
    group.end([Member("w3", NEW)])
    group.finish()
    group.begin()
    assert not group.is_outside
    assert group.view.names == ("w1", "w3")
