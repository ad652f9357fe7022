import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpwa.errors import UserError
from dpwa.tables.rows import accumulate, as_row_ids, as_values, cut, split

F32 = np.dtype("float32")


@pytest.mark.parametrize(
    "given_ids",
    [
        [4, 1, 4],
        (4, 1, 4),
        np.array([4, 1, 4], np.uint8),
        np.array([4, 1, 4], np.uint64),
        torch.tensor([4, 1, 4]),
        torch.tensor([4, 1, 4], dtype=torch.int16),
    ],
)
def test_ids_of_all_kinds_are_kept_in_their_order(given_ids):
    ids = as_row_ids(given_ids, 5)
    assert ids.dtype == np.int64
    assert ids.tolist() == [4, 1, 4]


@pytest.mark.parametrize(
    ("given_ids", "expected"),
    [
        (3, [3]),
        (np.int32(3), [3]),
        (torch.tensor(3), [3]),
        (range(4, 0, -2), [4, 2]),
        (range(0), []),
        ([], []),
    ],
)
def test_one_id_a_range_and_nothing(given_ids, expected):
    ids = as_row_ids(given_ids, 5)
    assert ids.dtype == np.int64
    assert ids.tolist() == expected


@pytest.mark.parametrize(
    ("given_ids", "message"),
    [
        ([0, 5], r"row_ids\[1\] is 5, expected 0 to 4"),
        ([0, -1], r"row_ids\[1\] is -1, expected 0 to 4"),
        (range(3, 9), r"row_ids\[2\] is 5, expected 0 to 4"),
        (np.array([2**64 - 1], np.uint64), r"is 18446744073709551615, expected 0 to 4"),
        ([True, False], "expected integers, got bool .*flatnonzero"),
        (torch.tensor([True]), "expected integers, got bool"),
        ([1.0], "expected integers, got float64"),
        ([[0, 1]], r"expected one dimension, got shape \(1, 2\)"),
        (["a"], "expected numbers"),
        (None, "expected numbers, got None"),
        ({1, 2}, "expected numbers"),
        ([[0], [1, 2]], "expected numbers"),
        ([2**70], "expected numbers"),
    ],
)
def test_wrong_ids_are_named(given_ids, message):
    with pytest.raises(UserError, match=message):
        as_row_ids(given_ids, 5)


def test_a_table_without_rows_has_no_ids():
    with pytest.raises(UserError, match=r"row_ids\[0\] is 0, the table has no rows"):
        as_row_ids(0, 0)


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], np.int64),
        np.array([[1, 3], [2, 4]], np.float64).T,
        torch.tensor([[1.0, 2], [3, 4]], requires_grad=True),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.float16),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_all_kinds_become_contiguous_arrays_of_the_table(values, dtype):
    array = as_values(values, (2, 2), np.dtype(dtype))
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.tolist() == [[1, 2], [3, 4]]


def test_one_row_may_come_alone():
    assert as_values([1, 2], (1, 2), F32).shape == (1, 2)
    assert as_values(5, (1,), F32).tolist() == [5]


def test_what_is_not_finite_stays_so():
    assert np.isnan(as_values([np.nan, np.inf], (2,), F32)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "shape", "message"),
    [
        ([1, 2, 3], (2,), r"got shape \(3,\), expected \(2,\)"),
        (1.0, (2,), r"got shape \(\), expected \(2,\)"),
        ([1, 2, 3, 4], (2, 2), r"got shape \(4,\), expected \(2, 2\)"),
        ([[1], [2]], (2, 2), r"got shape \(2, 1\), expected \(2, 2\)"),
        ([1j], (1,), "expected numbers"),
        (None, (1,), "expected numbers"),
        ("text", (1,), "expected numbers"),
    ],
)
def test_wrong_values_are_named(values, shape, message):
    with pytest.raises(UserError, match=message):
        as_values(values, shape, F32)


ids_and_sizes = st.integers(1, 20).flatmap(
    lambda rows: st.tuples(st.lists(st.integers(0, rows - 1), max_size=40), st.just(rows))
)


@given(case=ids_and_sizes, columns=st.sampled_from([None, 1, 3]), seed=st.integers(0, 2**32 - 1))
def test_duplicates_are_summed_in_any_order(case, columns, seed):
    ids, rows = np.array(case[0], np.int64), case[1]
    rng = np.random.default_rng(seed)
    shape = (len(ids),) if columns is None else (len(ids), columns)
    delta = rng.integers(-9, 10, shape).astype(F32)
    expected = np.zeros((rows, *shape[1:]), F32)
    for row, part in zip(ids, delta, strict=True):
        expected[row] += part
    order = rng.permutation(len(ids))

    for summed_ids, summed in (accumulate(ids, delta), accumulate(ids[order], delta[order])):
        assert summed_ids.tolist() == sorted(set(ids.tolist()))
        assert summed.dtype == F32
        np.testing.assert_array_equal(summed, expected[summed_ids])


def test_sums_of_the_smallest_and_largest_key():
    ids = np.array([2**63 - 1, -(2**63), 2**63 - 1, -(2**63)])
    keys, sums = accumulate(ids, np.array([1.0, 2.0, 4.0, 8.0]))
    assert keys.tolist() == [-(2**63), 2**63 - 1]
    assert sums.tolist() == [10, 5]


@given(case=ids_and_sizes, shards=st.integers(1, 25), is_sorted=st.booleans())
def test_parts_put_together_give_all_ids_in_their_places(case, shards, is_sorted):
    given_ids, rows = case
    ids = np.array(sorted(given_ids) if is_sorted else given_ids, np.int64)
    cuts = cut(rows, shards)
    together = np.full(len(ids), -1)
    parts = split(ids, cuts)
    for part in parts:
        assert part.rows.size
        assert part.rows.min() >= 0
        assert part.rows.max() < cuts[part.shard].rows
        assert (together[part.where] == -1).all(), "each id goes to one shard, once"
        together[part.where] = cuts[part.shard].start + part.rows
        if is_sorted:
            assert isinstance(part.where, slice), "what is sorted is cut without a copy"
    assert together.tolist() == ids.tolist()
    assert len({part.shard for part in parts}) == len(parts)


@given(rows=st.integers(0, 30), shards=st.integers(1, 10))
def test_all_rows_go_to_the_shards_that_have_some(rows, shards):
    parts = split(None, cut(rows, shards))
    assert all(part.rows is None for part in parts)
    assert [i for p in parts for i in range(p.where.start, p.where.stop)] == list(range(rows))
    assert [part.shard for part in parts] == list(range(min(rows, shards)))
