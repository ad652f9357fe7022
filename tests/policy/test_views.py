"""Views: who is who, what comes after a collective, and which of two views goes on."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.views import UNKNOWN, VIEW_ID_BYTES, Member, View, is_senior

RANKS = ("d", "a", "c", "b")


def view_of(names="dacb", since=0):
    return View(tuple(Member(name, b"1") for name in names), since)


def test_a_member_of_the_first_view_is_any_life_of_its_node():
    assert Member("a").incarnation == UNKNOWN
    assert Member("a") != Member("a", b"1")


def test_a_view_tells_names_in_order_of_rank_and_lives_by_name():
    view = View((Member("d", b"4"), Member("a", b"1")))
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
        View((Member("d", b"2"), *view_of("acb").members)),
        View(()),
        View((Member("d1"),)),
        View((Member("d", b"1"),)),
    ]
    assert len({view.identity for view in different}) == len(different)


def test_without_a_change_the_view_stays_with_its_beginning():
    view = view_of(since=3)
    assert view.after(7, (), (), RANKS) is view
    assert view.after(7, ("nobody",), (), RANKS) is view


def test_who_is_lost_is_out_and_the_view_begins_with_the_next_collective():
    assert view_of().after(7, ("a", "b"), (), RANKS) == view_of("dc", since=8)


def test_joiners_stand_at_their_ranks():
    view = view_of("db").after(0, (), (Member("c", b"1"), Member("a", b"1")), RANKS)
    assert view == view_of("dacb", since=1)


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


def test_the_larger_of_two_views_is_senior_and_of_equal_ones_that_of_the_first_rank():
    assert is_senior(3, "b", 2, "d", RANKS)
    assert not is_senior(2, "d", 3, "b", RANKS)
    assert is_senior(2, "a", 2, "c", RANKS)
    assert not is_senior(2, "c", 2, "a", RANKS)
    assert is_senior(1, "b", 1, "stranger", RANKS)


@given(st.integers(1, 4), st.sampled_from(RANKS), st.integers(1, 4), st.sampled_from(RANKS))
def test_of_two_views_that_share_nobody_exactly_one_is_senior(size, first, other_size, other):
    if first != other:
        one = is_senior(size, first, other_size, other, RANKS)
        assert one != is_senior(other_size, other, size, first, RANKS)
