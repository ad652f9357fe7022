import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.errors import UserError
from dpwa.tables.rows import ShardPlacement, ShardTransfer, after, copies_to_make, cut, initial

NAMES = tuple("abcdefghijklmnopqrst")


@given(rows=st.integers(0, 100), shards=st.integers(1, 12))
def test_shards_cover_all_rows_once_and_differ_by_at_most_one_row(rows, shards):
    cuts = cut(rows, shards)
    assert [shard.index for shard in cuts] == list(range(shards))
    assert [row for shard in cuts for row in range(shard.start, shard.stop)] == list(range(rows))
    sizes = [shard.rows for shard in cuts]
    assert max(sizes) - min(sizes) <= 1


def test_a_table_smaller_than_the_number_of_shards_leaves_the_last_ones_empty():
    assert [shard.rows for shard in cut(2, 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(("rows", "shards"), [(-1, 1), (3, 0)])
def test_what_cannot_be_cut_is_refused(rows, shards):
    with pytest.raises(UserError, match=f"{rows} rows in {shards} shards"):
        cut(rows, shards)


def check_laws(placement, members, replicas):
    for shard, holders in enumerate(placement.holders):
        assert holders, f"shard {shard} is lost"
        assert len(holders) == len(set(holders)) == 1 + min(replicas, len(members) - 1)
        assert set(holders) <= set(members)
        assert placement.primary(shard) == holders[0]


@given(n=st.integers(1, 6), shards=st.integers(1, 9), replicas=st.integers(0, 3))
def test_at_first_primaries_are_spread_evenly_and_copies_are_on_distinct_members(
    n, shards, replicas
):
    members = NAMES[:n]
    placement = initial(members, shards, replicas)
    check_laws(placement, members, replicas)
    primaries = [placement.primary(shard) for shard in range(shards)]
    counts = [primaries.count(member) for member in members]
    assert max(counts) - min(counts) <= 1
    for member in members:
        held = {i for i in range(shards) if member in placement.holders[i]}
        assert set(placement.held_by(member)) == held


def test_a_table_needs_a_member():
    with pytest.raises(UserError, match="at least one member"):
        initial((), 3, 1)


@given(data=st.data(), n=st.integers(1, 6), replicas=st.integers(0, 3))
def test_no_shard_is_lost_by_up_to_k_deaths_at_once_however_often(data, n, replicas):
    members = NAMES[:n]
    now = initial(members, n, replicas)
    for _ in range(data.draw(st.integers(1, 6), "changes")):
        most = min(replicas, len(members) - 1)
        died = data.draw(st.sets(st.sampled_from(members), max_size=most), "died")
        outside = sorted(set(NAMES) - set(members))
        joined = data.draw(st.lists(st.sampled_from(outside), unique=True, max_size=2), "joined")
        survivors = [name for name in members if name not in died]
        members = tuple(data.draw(st.permutations([*survivors, *joined]), "view"))

        before, now = now, after(now, members, replicas)

        check_laws(now, members, replicas)
        for old, new in zip(before.holders, now.holders, strict=True):
            alive = tuple(name for name in old if name in survivors)
            assert new[: len(alive)] == alive, "copies that survive stay, the earliest is primary"
        made = copies_to_make(before, now)
        assert len(made) == sum(map(len, now.holders)) - sum(
            name in survivors for holders in before.holders for name in holders
        ), "nothing is copied but what is missing"
        for shard, source, target in made:
            assert source in before.holders[shard]
            assert source in survivors
            assert target in now.holders[shard][1:]


@given(n=st.integers(1, 6), replicas=st.integers(0, 3))
def test_a_view_that_stays_moves_nothing(n, replicas):
    placement = initial(NAMES[:n], n, replicas)
    assert after(placement, NAMES[:n], replicas) == placement
    assert copies_to_make(placement, placement) == []


def test_a_replica_becomes_primary_and_the_least_loaded_takes_its_place():
    before = initial("abcd", 4, 1)
    assert before.holders == (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))
    now = after(before, "acd", 1)
    # All have 2 copies. Of c and d, c comes first; then of a and d, a.
    assert now.holders == (("a", "c"), ("c", "a"), ("c", "d"), ("d", "a"))
    assert copies_to_make(before, now) == [ShardTransfer(0, "a", "c"), ShardTransfer(1, "c", "a")]
    # d has 2 copies, and a and c have 3.
    assert after(now, "acde", 2).holders[2] == ("c", "d", "e")


def test_replicas_that_are_placed_count_when_the_next_are():
    now = after(initial("a", 4, 0), "abc", 1)
    assert now.holders == (("a", "b"), ("a", "c"), ("a", "b"), ("a", "c"))


def test_replicas_beyond_those_wanted_are_given_up():
    assert after(initial("abc", 1, 2), "abc", 1).holders == (("a", "b"),)


def test_who_joins_gets_replicas_that_are_missing():
    now = after(initial("a", 2, 1), "ab", 1)
    assert now.holders == (("a", "b"), ("a", "b"))


def test_a_shard_without_copies_is_lost_and_stays_lost():
    now = after(initial("abc", 3, 1), "c", 1)
    assert now.holders == ((), ("c",), ("c",))
    with pytest.raises(LookupError, match="no copy of shard 0"):
        now.primary(0)
    assert after(now, "cd", 1).holders == ((), ("c", "d"), ("c", "d"))


def test_a_copy_that_was_never_completed_does_not_become_primary():
    completed = ShardPlacement((("a", "c"),))
    now = after(completed, "bc", 2)
    assert now.holders == (("c", "b"),)
    assert copies_to_make(completed, now) == [ShardTransfer(0, "c", "b")]


def test_the_placement_depends_on_nothing_but_its_arguments():
    for _ in range(3):
        placements = {after(initial(NAMES[:6], 6, 2), NAMES[3:8], 2) for _ in range(5)}
        assert len(placements) == 1
