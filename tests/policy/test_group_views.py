"""Views: who is who, what comes after a collective, and which of two views goes on."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.group_views import (
    UNKNOWN,
    VIEW_ID_BYTES,
    GroupView,
    Member,
    ViewRank,
    has_precedence,
)

RANKS = ("d", "a", "c", "b")


def view_of(names="dacb", since=0):
    return GroupView(tuple(Member(name, b"1") for name in names), since)


def test_a_member_of_the_first_view_is_any_life_of_its_node():
    assert Member("a").incarnation == UNKNOWN
    assert Member("a") != Member("a", b"1")


def test_a_view_tells_names_in_order_of_rank_and_lives_by_name():
    view = GroupView((Member("d", b"4"), Member("a", b"1")))
    assert view.names == ("d", "a")
    assert view.incarnation_of("a") == b"1"
    assert view.incarnation_of("b") is None


def test_equal_views_have_equal_identities():
    assert view_of().identity == view_of().identity
    assert len(view_of().identity) == VIEW_ID_BYTES


def test_identity_tells_members_lives_order_and_beginning_apart():
    different = [
        view_of(),
        view_of(since=1),
        view_of("dac"),
        view_of("adcb"),
        GroupView((Member("d", b"2"), *view_of("acb").members)),
        GroupView(()),
        GroupView((Member("d1"),)),
        GroupView((Member("d", b"1"),)),
    ]
    assert len({view.identity for view in different}) == len(different)


def test_without_a_change_the_view_stays_with_its_beginning():
    view = view_of(since=3)
    assert view.after(7, (), (), RANKS) is view
    assert view.after(7, ("nobody",), (), RANKS) is view


def test_who_is_lost_is_out_and_the_view_begins_with_the_next_collective():
    after = view_of().after(7, ("a", "b"), (), RANKS)
    assert (after.members, after.since) == (view_of("dc").members, 8)
    assert after.before == view_of().identity


def test_joiners_stand_at_their_ranks():
    view = view_of("db").after(0, (), (Member("c", b"1"), Member("a", b"1")), RANKS)
    assert (view.members, view.since) == (view_of("dacb").members, 1)


def test_nodes_without_a_rank_come_last_by_name():
    joiners = Member("z", b"1"), Member("y", b"1")
    assert view_of("b").after(0, (), joiners, RANKS).names == ("b", "y", "z")


def test_a_member_that_stays_is_not_replaced_by_another_life_of_it():
    view = view_of()
    assert view.after(0, (), (Member("a", b"2"),), RANKS) is view


def test_a_member_that_is_lost_may_join_with_another_life():
    view = view_of("da").after(0, ("a",), (Member("a", b"2"),), RANKS)
    assert view.members == (Member("d", b"1"), Member("a", b"2"))
    assert view.identity != view_of("da", since=1).identity


def test_a_life_that_is_lost_is_not_let_in_for_what_it_asked_before():
    asked = (Member("a", b"1"), Member("c", b"1"))
    assert view_of("da").after(0, ("a",), asked, RANKS).members == view_of("dc").members


def test_two_that_began_alone_and_let_in_each_other_are_of_two_views():
    one, other = Member("a", b"1"), Member("c", b"1")
    of_one = GroupView((one,)).after(0, (), [other], RANKS)
    of_other = GroupView((other,)).after(0, (), [one], RANKS)
    assert (of_one.members, of_one.since) == (of_other.members, of_other.since)
    assert of_one.identity != of_other.identity


def test_of_several_lives_of_a_joiner_all_choose_the_greatest():
    lives = [Member("c", b"2"), Member("c", b"9"), Member("c", b"5")]
    for seed in range(6):
        random.Random(seed).shuffle(lives)
        view = view_of("da").after(0, (), lives, RANKS)
        assert view.incarnation_of("c") == b"9", f"seed {seed}"


@given(st.permutations([Member(n, b"1") for n in "abc"]), st.sets(st.sampled_from("dacb")))
def test_the_view_after_does_not_depend_on_the_order_of_what_was_told(joiners, lost):
    view = view_of("db")
    after = view.after(2, lost, joiners, RANKS)
    assert after == view.after(2, sorted(lost), sorted(joiners), RANKS)
    assert list(after.names) == sorted(after.names, key=RANKS.index)


def test_the_larger_of_two_views_has_precedence_then_the_busier_then_that_of_the_first_rank():
    assert has_precedence(ViewRank(3, 0, "b"), ViewRank(2, 9, "d"), RANKS)
    assert not has_precedence(ViewRank(2, 9, "d"), ViewRank(3, 0, "b"), RANKS)
    assert has_precedence(ViewRank(2, 8, "c"), ViewRank(2, 7, "a"), RANKS)
    assert not has_precedence(ViewRank(2, 7, "a"), ViewRank(2, 8, "c"), RANKS)
    assert has_precedence(ViewRank(2, 1, "c"), ViewRank(2, 0, "a"), RANKS)
    assert has_precedence(ViewRank(2, 5, "a"), ViewRank(2, 5, "c"), RANKS)
    assert not has_precedence(ViewRank(2, 5, "c"), ViewRank(2, 5, "a"), RANKS)
    assert has_precedence(ViewRank(1, 0, "b"), ViewRank(1, 0, "stranger"), RANKS)


def test_two_views_in_step_do_not_each_take_themselves_for_the_busier_one():
    def give_way(first, other, age):
        """Tell who gives way, if each knows of the other what it had ended a while before."""
        own = ViewRank(1, first, "d"), ViewRank(1, other, "a")
        heard = ViewRank(1, max(0, first - age), "d"), ViewRank(1, max(0, other - age), "a")
        pairs = ((heard[1], own[0]), (heard[0], own[1]))
        return [has_precedence(theirs, mine, RANKS) for theirs, mine in pairs]

    for ended in range(200, 250):
        assert give_way(ended, ended, 5) == [False, True]


STANDINGS = st.builds(ViewRank, st.integers(1, 4), st.integers(0, 9), st.sampled_from(RANKS))


@given(STANDINGS, STANDINGS)
def test_of_two_views_that_share_nobody_exactly_one_has_precedence(one, other):
    if one.first != other.first:
        assert has_precedence(one, other, RANKS) != has_precedence(other, one, RANKS)


@given(STANDINGS, STANDINGS, STANDINGS)
def test_seniority_is_an_order(one, other, third):
    if has_precedence(one, other, RANKS) and has_precedence(other, third, RANKS):
        assert has_precedence(one, third, RANKS)


def names_left(seed):
    """Let views of one meet; return who has not given itself up in the end."""
    rng = random.Random(seed)
    ended = {name: rng.randrange(3) for name in "da"}
    under_way = {name: [] for name in ended}
    heard = {name: [] for name in ended}
    there = set(ended)
    for _ in range(30):
        name, other = rng.sample("da", 2)
        own, event = ViewRank(1, ended[name], name), rng.choice(["end", "tell", "hear", "begin"])
        if event == "hear" and under_way[name]:
            heard[name].append(under_way[name].pop(0))
        elif event == "end":
            ended[name] += name in there
        elif event == "tell" and name in there:
            under_way[other].append(own)
        elif event == "begin" and any(has_precedence(told, own, RANKS) for told in heard[name]):
            there.discard(name)
    return there


def test_of_views_of_one_that_meet_one_goes_on_however_late_they_hear_of_each_other():
    left = [names_left(seed) for seed in range(1000)]
    assert all(left), f"seed {left.index(set())}"
    assert {len(there) for there in left} == {1, 2}  # some had not heard enough to give way
