"""What a node takes of lives and views that it has not met yet, or not any more."""

import pytest

from dpwa.collectives.contacts import REMEMBERED_DEPARTED, Contacts
from dpwa.collectives.group import Group, Phase
from dpwa.collectives.views import ENTERED, READY, PhaseRecords
from dpwa.data.shared_records import Posted
from dpwa.policy.group_views import VIEW_ID_BYTES, GroupView, Member
from dpwa.runtime import SYSTEM
from dpwa.transport.link import LinkState
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Hello, Post, Vote

RANKS = ("w1", "w2", "w3")
OWN = Member("w1", b"own-life")
OLD, NEW = b"old-life", b"new-life"
NO_VIEW = {"size": 0, "ended": 0, "first": ""}


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
    made = Group("", RANKS, contacts, SYSTEM)
    made.start_alone()
    return made


def hello(incarnation, name="w3"):
    fields = {"folder": "", "nonce": bytes(16), "is_mapped": False}
    return Hello(request=0, name=name, incarnation=incarnation, **fields)


def test_a_life_is_gone_when_its_connection_is_or_another_has_come(contacts):
    assert not contacts.is_lost("w3", OLD)
    contacts.link_changed("w3", LinkState.UP)
    contacts.receive_hello(hello(OLD))
    assert not contacts.is_lost("w3", OLD)
    contacts.link_changed("w3", LinkState.DOWN)
    assert contacts.is_lost("w3", OLD)
    contacts.receive_hello(hello(NEW))
    assert contacts.is_lost("w3", OLD)
    assert not contacts.is_lost("w3", NEW)


@pytest.mark.parametrize("state", [LinkState.UP, LinkState.DOWN])
def test_a_life_that_others_have_let_in_before_it_was_met_is_not_gone(contacts, state):
    contacts.link_changed("w3", LinkState.UP)
    contacts.receive_hello(hello(OLD))
    contacts.link_changed("w3", state)
    assert not contacts.is_lost("w3", NEW)


def test_a_node_that_is_gone_does_not_ask_to_be_let_in_any_more(contacts, group):
    for name in ("w2", "w3"):
        contacts.link_changed(name, LinkState.UP)
        contacts.receive_hello(hello(OLD, name))
        group.receive_message(
            AskToJoinView(request=0, tag="", name=name, incarnation=OLD, **NO_VIEW)
        )
    contacts.link_changed("w3", LinkState.DOWN)
    assert group.join_requests() == (Member("w2", OLD),)


def test_a_connection_that_is_lost_and_then_let_go_is_lost(contacts):
    contacts.link_changed("w3", LinkState.UP)
    contacts.receive_hello(hello(OLD))
    contacts.link_changed("w3", LinkState.IDLE)
    assert not contacts.is_lost("w3", OLD)
    for state in (LinkState.UP, LinkState.DOWN, LinkState.IDLE):
        contacts.link_changed("w3", state)
    assert contacts.is_lost("w3", OLD)


def test_a_node_that_is_met_hears_of_a_collective_only_if_it_has_part(group, told):
    group.enter(b"record")
    told.clear()
    group.contact_changed("w3")
    assert not any(isinstance(message, Post) for _, message in told)


def test_a_first_collective_is_told_to_members_as_they_are_met(contacts, told):
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter(b"record")
    told.clear()
    group.contact_changed("w3")
    assert [(peer, message.phase) for peer, message in told] == [("w3", ENTERED)]


@pytest.mark.parametrize(("number", "asks"), [(0, False), (1, True)])
def test_who_hears_that_others_are_further_asks_them_how_the_collective_ended(
    contacts, told, number, asks
):
    """Somebody may have stopped when it had told only some of the others that it is ready."""
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter(b"record")
    group.post_ready(b"record")
    fields = {"view": group.view.identity, "number": number, "phase": ENTERED, "record": b"record"}
    group.receive_message(Post(request=0, tag="", name="w2", incarnation=OLD, **fields))
    group.look_around()
    assert any(isinstance(message, Vote) for _, message in told) == asks


def test_who_votes_is_frozen(contacts, told):
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter(b"record")
    group.doubt()
    told.clear()
    group.post_ready(b"record")
    group.end_call(())
    assert (group.phase, group.number) == (Phase.VOTING, 0)
    assert not told


def outside(size, ended=0):
    fields = {"view": bytes(VIEW_ID_BYTES), "number": 0, "size": size}
    fields |= {"ended": ended, "first": "w2", "waits": False}
    return Evicted(request=0, tag="", name="w3", incarnation=NEW, **fields)


@pytest.mark.parametrize(
    ("size", "ended", "moves"), [(1, 0, False), (1, 1, True), (2, 0, True), (2, 1, True)]
)
def test_the_junior_view_gives_itself_up_before_the_next_collective(
    contacts, group, size, ended, moves
):
    contacts.link_changed("w3", LinkState.UP)
    group.receive_message(outside(size, ended))
    group.prepare_call()
    assert group.is_evicted == moves
    assert not group.told()  # it goes by itself


def test_nobody_gives_itself_up_for_a_view_that_cannot_be_reached(group):
    group.receive_message(outside(2))
    group.prepare_call()
    assert not group.is_evicted


def test_what_a_view_has_ended_since_it_heard_of_another_counts(contacts, group):
    contacts.link_changed("w3", LinkState.UP)
    group.receive_message(outside(1, ended=1))
    assert group.is_outranked
    end_alone(group)
    group.prepare_call()
    assert not group.is_evicted


def end_alone(group):
    group.enter(b"record")
    group.post_ready(b"record")
    group.end_call(())
    group.inside = group.called
    group.finish()


def test_who_has_been_let_in_is_no_reason_to_move(group):
    """It may have spoken of the larger view before this node has come to it."""
    group.prepare_call()
    group.enter(b"record")
    group.receive_message(outside(2))
    group.post_ready(b"record")
    assert set(group.records(READY)) == {"w1"}
    group.end_call([Member("w3", NEW)])
    group.inside = group.called
    group.finish()
    group.prepare_call()
    assert not group.is_evicted
    assert group.view.names == ("w1", "w3")


# Where nodes come and go


@pytest.fixture
def open_group(contacts):
    """A group in which the node begins alone, and hears of another node."""
    contacts.link_changed("w3", LinkState.UP)
    return Group("", (), contacts, SYSTEM)


def ask_to_join(size=0, ended=0, first=""):
    fields = {"size": size, "ended": ended, "first": first}
    return AskToJoinView(request=0, tag="", name="w3", incarnation=NEW, **fields)


def said_to_w3(told, kind):
    return [message for peer, message in told if peer == "w3" and isinstance(message, kind)]


def test_who_calls_no_collectives_is_in_nobodys_way(open_group, told):
    """A message of a peer has made its group; others would move to it, and wait for ever."""
    told.clear()
    open_group.receive_message(ask_to_join(1, 0, "w3"))
    open_group.receive_message(ask_to_join())
    assert not said_to_w3(told, Evicted)
    open_group.may_meet()
    told.clear()
    open_group.receive_message(ask_to_join(1, 0, "w3"))
    assert [message.first for message in said_to_w3(told, Evicted)] == ["w1"]


def test_before_its_first_collective_a_node_looks_for_others_that_begin(open_group, told):
    assert open_group.may_meet()
    assert [message.size for message in said_to_w3(told, AskToJoinView)] == [1]
    open_group.receive_message(ask_to_join())
    assert open_group.may_meet()  # w2 may still come
    open_group.meet()
    assert open_group.view.names == ("w1", "w3")
    assert said_to_w3(told, CollectiveOutcome)
    assert open_group.decision is None  # its first collective is yet to come
    assert not open_group.may_meet()


def test_who_hears_of_a_view_that_is_at_work_waits_for_nobody_else(open_group):
    open_group.receive_message(outside(1, ended=5))
    assert not open_group.may_meet()
    open_group.meet()
    open_group.prepare_call()
    assert open_group.is_evicted


def test_a_node_that_was_let_in_but_not_told_is_told_when_it_asks_again(open_group, told):
    open_group.may_meet()
    open_group.receive_message(ask_to_join())
    open_group.meet()
    told.clear()
    open_group.receive_message(ask_to_join())
    (again,) = said_to_w3(told, CollectiveOutcome)
    assert again.members == (("w1", b"own-life"), ("w3", NEW))
    assert again.since == open_group.number


def lets_in(since):
    fields = {"view": bytes(VIEW_ID_BYTES), "number": 0, "holds": True, "lost": (), "before": b""}
    signed = {"request": 0, "tag": "", "name": "w3", "incarnation": NEW}
    return CollectiveOutcome(members=(("w1", b"own-life"),), since=since, **signed, **fields)


def test_a_view_that_was_left_is_not_entered_again(open_group):
    open_group.prepare_call()
    open_group.leave_group()
    open_group.ask_to_join()
    open_group.receive_message(lets_in(since=0))
    assert open_group.is_evicted
    open_group.receive_message(lets_in(since=1))
    assert not open_group.is_evicted


def test_a_node_that_leaves_while_it_asks_to_be_let_in_is_not_let_in(open_group):
    open_group.leave_group()
    open_group.ask_to_join()
    open_group.leave_group()
    open_group.receive_message(lets_in(since=1))
    assert open_group.phase is Phase.OUTSIDE


def test_a_member_that_waits_elsewhere_refuses_a_node_until_it_asks_again(open_group):
    open_group.leave_group()
    open_group.ask_to_join()
    assert not open_group.discovery.knows_views
    open_group.receive_message(outside(2).model_copy(update={"waits": True}))
    assert open_group.phase is Phase.REFUSED
    open_group.ask_to_join()
    assert open_group.phase is Phase.ASKING
    assert open_group.discovery.knows_views  # a view goes on without it
    open_group.forget_answers()
    assert not open_group.discovery.knows_views


def test_a_node_that_is_left_behind_after_a_collective_reports_it_once(group):
    group.enter(b"record")
    group.post_ready(b"record")
    group.end_call(())
    group.give_up()
    assert group.phase is Phase.LEFT_BEHIND
    assert group.told()
    assert not group.told()
    assert group.phase is Phase.OUTSIDE


# Introductions


def ignore(*_):
    pass


def test_a_peer_that_introduces_itself_while_its_board_is_looked_for_is_a_member():
    """Else the board would be taken for nobody's, and what it says later for a stranger's."""
    hellos = []
    of_peer = Contacts(
        Member("w2", NEW),
        lambda: RANKS,
        lambda _, hello: hellos.append(hello),
        ignore,
        may_map=True,
    )
    with of_peer, Contacts(OWN, lambda: RANKS, ignore, ignore, may_map=True) as contacts:
        of_peer.link_changed("w1", LinkState.UP)
        Group("", RANKS, of_peer, SYSTEM).enter(b"of w2")
        introduction = [message for message in hellos if isinstance(message, Hello)][-1]
        board_of = contacts.board_of

        def introduced(name, tag):
            if name == introduction.name:
                contacts.receive_hello(introduction)
            return board_of(name, tag)

        contacts.board_of = introduced
        group = Group("", RANKS, contacts, SYSTEM)
        group.enter(b"of w1")
        for _ in range(3):
            assert group.records(ENTERED) == {"w1": b"of w1", "w2": b"of w2"}


# Peers that leave the cluster


@pytest.fixture
def there():
    """Who is in the cluster, beside w1."""
    return {"w3"}


@pytest.fixture
def of_cluster(there, told):
    """The contacts of w1 in a cluster that nodes leave."""
    names = lambda: ("w1", *there)  # noqa: E731
    tell = lambda peer, message: told.append((peer, message))  # noqa: E731
    with Contacts(OWN, names, tell, ignore, may_map=True) as made:
        yield made


def test_nothing_but_its_lives_is_kept_of_a_node_that_has_left(of_cluster, there):
    for number in range(2 * REMEMBERED_DEPARTED):
        name = f"n{number}"
        there.add(name)
        of_cluster.link_changed(name, LinkState.UP)
        of_cluster.receive_hello(hello(number.to_bytes(8, "big"), name))
        there.remove(name)
        of_cluster.link_changed(name, LinkState.DOWN)
        assert of_cluster.is_lost(name, number.to_bytes(8, "big"))
        assert not of_cluster.is_up(name)
    assert not of_cluster._contacts
    assert len(of_cluster._departed) == REMEMBERED_DEPARTED


def test_a_node_that_comes_back_is_the_one_that_left(of_cluster, there):
    for state in (LinkState.UP, LinkState.DOWN):
        of_cluster.link_changed("w3", state)
        of_cluster.receive_hello(hello(OLD))
    there.remove("w3")
    of_cluster.link_changed("w3", LinkState.DOWN)
    there.add("w3")
    of_cluster.link_changed("w3", LinkState.UP)
    assert of_cluster.incarnation("w3") == OLD
    assert not of_cluster.is_lost("w3", OLD)
    of_cluster.link_changed("w3", LinkState.DOWN)
    of_cluster.receive_hello(hello(NEW))
    assert of_cluster.is_lost("w3", OLD)
    assert not of_cluster.is_lost("w3", NEW)


def test_who_has_forgotten_this_node_meanwhile_hears_of_its_memory_again(of_cluster, told):
    of_cluster.link_changed("w3", LinkState.UP)
    of_cluster.offer_memory()
    of_cluster.receive_hello(hello(NEW).model_copy(update={"is_mapped": True}))
    told.clear()
    of_cluster.receive_hello(hello(NEW).model_copy(update={"is_mapped": True}))
    assert not told
    of_cluster.receive_hello(hello(NEW).model_copy(update={"is_mapped": None}))
    assert [message.folder != "" for _, message in told] == [True]


def entered(view, name, incarnation):
    fields = {"view": view.identity, "number": 0, "phase": ENTERED, "record": b"record"}
    return Post(request=0, tag="", name=name, incarnation=incarnation, **fields)


def test_only_the_life_of_a_node_that_is_a_member_speaks_for_it(contacts, told):
    group = Group("", RANKS, contacts, SYSTEM)
    group.receive_message(entered(group.view, "w3", OLD))  # the first one that speaks is the member
    group.receive_message(entered(group.view, "w2", NEW))
    group.receive_message(entered(group.view, "w2", OLD))
    assert group.records(ENTERED) == {"w2": b"record", "w3": b"record"}
    told.clear()
    group.receive_message(entered(group.view, "w3", NEW))
    ((peer, answer),) = told
    assert peer == "w3"
    assert isinstance(answer, Evicted)
    assert [group.is_member(*life) for life in [("w3", OLD), ("w2", NEW)]] == [True, True]
    strangers = [("w3", NEW), ("w2", OLD), ("w4", OLD)]
    assert not any(group.is_member(*life) for life in strangers)


def test_a_record_on_a_board_counts_for_the_life_whose_board_it_is(contacts, monkeypatch):
    group = Group("", RANKS, contacts, SYSTEM)
    assert group.is_member("w3", OLD)
    posted = Posted(group.number, group.view.identity, b"record")
    monkeypatch.setattr(PhaseRecords, "on_board", lambda self, name, phase: posted)
    lives = {"w3": NEW, "w2": NEW}
    monkeypatch.setattr(PhaseRecords, "life_of_board", lambda self, name: lives[name])
    assert set(group.records(ENTERED)) == {"w2"}
    lives["w3"] = OLD
    assert set(group.records(ENTERED)) == {"w2", "w3"}


def vote(view, name, incarnation, number=0, suspects=()):
    fields = {"view": view.identity, "number": number, "suspects": suspects, "entered": True}
    rest = {"ready": False, "expired": False, "seen": (), "join_requests": ()}
    return Vote(request=0, tag="", name=name, incarnation=incarnation, **fields, **rest)


def test_who_takes_no_part_any_more_says_so_to_whoever_waits_for_its_vote(contacts, told):
    group = Group("", RANKS, contacts, SYSTEM)
    group.leave_group()
    told.clear()
    group.receive_message(vote(group.view, "w2", NEW, number=3))
    ((peer, answer),) = told
    assert (peer, answer.number, answer.suspects) == ("w2", 3, ("w1",))
    group.receive_message(vote(group.view, "w2", NEW, number=3, suspects=("w1",)))
    assert len(told) == 1


OTHER_VIEW = GroupView((OWN, Member("w2", NEW)), 7)


@pytest.mark.parametrize("number", [0, 3, 9])
@pytest.mark.parametrize("say", [entered, vote])
def test_a_node_that_is_outside_says_so_to_members_of_a_view_that_counts_on_it(
    contacts, told, say, number
):
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter_view(GroupView(tuple(map(Member, RANKS)), 3), 3)
    group.leave_group()
    told.clear()
    group.receive_message(say(OTHER_VIEW, "w2", NEW).model_copy(update={"number": number}))
    ((peer, answer),) = told
    assert (peer, answer.view, answer.number) == ("w2", OTHER_VIEW.identity, number)
    assert answer.suspects == ("w1",)


@pytest.mark.parametrize("say", [entered, vote])
def test_of_two_views_with_each_others_members_one_ends(contacts, told, say):
    theirs, number = GroupView((Member("w2", NEW),)).after(0, (), [OWN], RANKS), 1
    group = Group("", RANKS, contacts, SYSTEM)
    for rival in range(100):
        own = GroupView((OWN,), before=bytes([rival])).after(0, (), [Member("w2", NEW)], RANKS)
        group.enter_view(own, number)
        told.clear()
        group.receive_message(say(theirs, "w2", NEW).model_copy(update={"number": number}))
        answers = [answer for _, answer in told if isinstance(answer, Evicted)]
        assert bool(answers) is (own.identity > theirs.identity)
        assert not group.is_evicted


@pytest.mark.parametrize("own_number", [3, 9])
def test_a_node_that_asks_to_be_let_in_takes_in_what_members_of_that_view_have_called(
    contacts, told, own_number
):
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter_view(GroupView(tuple(map(Member, RANKS)), own_number), own_number)
    group.leave_group()
    group.ask_to_join()
    told.clear()
    group.receive_message(entered(OTHER_VIEW, "w2", NEW).model_copy(update={"number": 7}))
    group.enter_view(OTHER_VIEW, 7)
    assert group.records(ENTERED) == {"w2": b"record"}
    assert not told


def test_a_node_tells_again_what_it_has_called_to_members_that_have_not_come_so_far(
    contacts, told, monkeypatch
):
    """A member may have gone on in another view since it heard that, and then says so."""
    monkeypatch.setattr("dpwa.collectives.group.CALL_AGAIN_S", 0.0)
    group = Group("", RANKS, contacts, SYSTEM)
    group.enter(b"mine")
    group.receive_message(entered(group.view, "w2", NEW))
    told.clear()
    group.look_around()
    assert [(peer, post.phase) for peer, post in told] == [("w3", ENTERED)]
    group.post_ready(b"done")
    told.clear()
    group.look_around()
    said = [(peer, post.phase, post.record) for peer, post in told]
    both = [(ENTERED, b"mine"), (READY, b"done")]
    assert said == [(peer, *record) for record in both for peer in ("w2", "w3")]


def test_a_member_that_leaves_is_not_let_in_for_what_it_has_asked_before(contacts):
    group = Group("", RANKS, contacts, SYSTEM)
    fields = {**NO_VIEW, "incarnation": NEW}
    for name in ("w2", "w3"):
        group.receive_message(AskToJoinView(request=0, tag="", name=name, **fields))
    group.receive_message(vote(group.view, "w3", NEW, suspects=("w3",)))
    assert group.discovery.join_requests() == (Member("w2", NEW),)
