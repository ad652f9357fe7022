import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.errors import ProtocolError
from dpwa.tables.directory import HeldShard, Known, Told, digest_of, new_plan, plans, unpack_told
from dpwa.tables.specs import TableSpec

SPEC = TableSpec(rows=10, replicas=1)
ONE, OTHER = digest_of({"w1:1": (3, 3)}), digest_of({"w1:1": (4, 4)})


def told(copies=(), *, is_ready=True, shards=1):
    held = tuple(HeldShard(*copy) for copy in copies)
    return Told({0: Known(SPEC, shards, is_ready, held)})


def stayed(needed, copies=(), placed=(), *, is_ready=True):
    """Who was there all the time, and knows of the one shard which epoch is needed."""
    held = tuple(HeldShard(*copy) for copy in copies)
    return Told({0: Known(SPEC, 1, is_ready, held, placed, (needed,))})


def holders(said, members=None):
    members = tuple(sorted(said)) if members is None else members
    plan = plans(members, said)[0]
    return plan.placement.holders, [tuple(copy) for copy in plan.copies]


def test_copies_stay_where_they_are():
    said = {"a": told([(0, 5, 1, ONE)]), "b": told([(0, 5, 0, ONE)]), "c": told()}
    assert holders(said) == ((("b", "a"),), [])


def test_the_replica_follows_a_primary_that_is_gone_and_is_copied():
    said = {"a": told(), "c": told([(0, 5, 1, ONE)])}
    assert holders(said) == ((("c", "a"),), [(0, "c", "a")])


def test_a_replica_that_has_other_additions_than_the_primary_is_made_anew():
    said = {"a": told([(0, 5, 1, ONE)]), "b": told([(0, 5, 0, OTHER)])}
    assert holders(said) == ((("b", "a"),), [(0, "b", "a")])


def test_a_copy_of_an_older_view_does_not_count():
    said = {"a": told([(0, 4, 0, ONE)]), "b": told([(0, 5, 1, OTHER)])}
    assert holders(said) == ((("b", "a"),), [(0, "b", "a")])


def test_a_shard_without_copies_is_lost_unless_nobody_has_used_it():
    assert holders({"a": told(), "b": told()}) == (((),), [])
    fresh = {"a": told(is_ready=False, shards=2), "b": Told({})}
    assert holders(fresh) == ((("a", "b"), ("b", "a")), [])


def test_a_shard_of_which_nobody_is_there_who_was_to_hold_it_is_lost_though_none_has_used_it():
    """Those may have gone on without who is there, and used it."""
    placed = (("a", "b"), ("b", "c"))
    known = Known(SPEC, 2, is_ready=False, copies=(HeldShard(0, 5, 0, ONE),), holders=placed)
    assert holders({"a": Told({0: known})})[0] == (("a",), ())
    both = {"a": Told({0: known}), "c": Told({})}  # the second one has not heard of it
    assert holders(both)[0] == (("a", "c"), ("c", "a"))
    later = Known(SPEC, 2, is_ready=False, copies=(HeldShard(0, 6, 0, ONE),), holders=(("a",), ()))
    assert holders({"a": Told({0: later}), "b": Told({})})[0][1] == ()  # it stays lost


def test_the_copy_of_who_was_left_out_stands_in_if_none_was_made_since():
    """The primary has died before it had copied all to b, so that nothing was acknowledged."""
    left_out = told([(0, 5, 1, OTHER)])
    assert holders({"a": left_out, "b": stayed(5)}) == ((("a", "b"),), [(0, "a", "b")])
    assert plans(("a", "b"), {"a": left_out, "b": stayed(5)})[0].needed == (5,)


def test_a_copy_of_who_was_left_out_does_not_count_beside_one_of_who_was_there():
    said = {"a": told([(0, 9, 0, OTHER)]), "b": stayed(6, [(0, 6, 1, ONE)])}
    assert holders(said) == ((("b", "a"),), [(0, "b", "a")])


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_copy_from_before_what_may_have_been_acknowledged_never_stands_in(is_ready):
    placed = (("c", "d"),)
    gone = stayed(6, placed=placed, is_ready=is_ready)  # they may have taken additions
    assert holders({"a": told([(0, 5, 0, ONE)], is_ready=is_ready), "b": gone}) == (((),), [])
    its_own = stayed(6, [(0, 5, 0, ONE)], placed, is_ready=is_ready)
    assert holders({"a": its_own, "b": gone}) == (((),), [])


def test_the_least_that_a_member_knows_to_be_needed_is():
    """Who waits for its copy knows that nothing was acknowledged; others do not."""
    said = {"a": told([(0, 5, 1, ONE)]), "b": stayed(5), "c": stayed(6)}
    assert holders(said)[0] == (("a", "b"),)


def test_a_lost_shard_is_there_again_with_who_has_it():
    lost = stayed(5, placed=((),))
    assert holders({"b": lost}) == (((),), [])
    assert holders({"a": told([(0, 5, 1, ONE)]), "b": lost})[0] == (("a", "b"),)


def test_copies_of_another_table_of_the_same_number_do_not_count():
    other = Told({0: Known(TableSpec(rows=11), 1, True, (HeldShard(0, 9, 0, OTHER),))})
    assert holders({"a": other, "b": stayed(5, [(0, 5, 0, ONE)])})[0] == (("b", "a"),)


def test_digests_tell_how_many_additions_there_are_not_only_which_was_the_last():
    assert digest_of({"w1:1": (3, 2)}) != ONE
    assert digest_of({"w1:1": (3, 3)}) == ONE


def test_a_table_that_one_member_knows_is_known_to_all():
    said = {"a": Told({}), "b": told([(0, 5, 0, ONE)])}
    assert holders(said) == ((("b", "a"),), [(0, "b", "a")])


@given(
    data=st.data(),
    members=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True).map(sorted),
    shards=st.integers(1, 5),
    replicas=st.integers(0, 3),
)
def test_who_loses_no_more_members_than_replicas_loses_nothing(data, members, shards, replicas):
    spec = TableSpec(rows=10, replicas=replicas)
    placement = new_plan(spec, shards, tuple(members)).placement
    lost = data.draw(st.sets(st.sampled_from(members), max_size=min(replicas, len(members) - 1)))
    rest = tuple(name for name in members if name not in lost)
    said = {}
    for name in rest:
        mine = placement.held_by(name)
        held = tuple(HeldShard(s, 7, placement.holders[s].index(name), ONE) for s in mine)
        said[name] = Told({0: Known(spec, shards, is_ready=True, copies=held)})
    plan = plans(rest, said)[0]
    assert all(plan.placement.holders)
    for shard, names in enumerate(plan.placement.holders):
        assert len(names) == min(1 + replicas, len(rest))
        assert names[0] in placement.holders[shard]
        new = {copy.target for copy in plan.copies if copy.shard == shard}
        assert new == set(names) - set(placement.holders[shard])


def test_what_is_told_survives_the_wire():
    said = Told(
        {
            0: Known(SPEC, 3, is_ready=True, copies=(HeldShard(1, 2, 0, ONE),)),
            5: Known(SPEC, 1, holders=(("w1", "w2"),), needed=(7,)),
        },
        passed=3,
        is_waiting=True,
    )
    assert unpack_told(said.pack()) == said
    assert unpack_told(Told({}).pack()) == Told({})


@given(data=st.binary(max_size=200))
def test_nonsense_is_refused(data):
    with pytest.raises(ProtocolError):
        unpack_told(data)


@given(place=st.integers(0, 500), bits=st.integers(1, 255))
def test_what_was_changed_on_the_way_is_refused_or_is_something_else(place, bits):
    packed = bytearray(told([(0, 5, 0, ONE)]).pack())
    packed[place % len(packed)] ^= bits
    try:
        unpack_told(packed)
    except ProtocolError:
        return
