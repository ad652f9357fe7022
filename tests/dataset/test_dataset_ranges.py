import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpwa.dataset.range_table import DatasetRanges, shuffled


@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_the_ranges_of_an_epoch_are_all_items_each_once(size, range_size, seed, epoch):
    ranges = DatasetRanges(size, range_size, shuffle=True, seed=seed)
    order = shuffled(size, seed, epoch)
    found = [ranges.cut(order, number) for number in range(ranges.count)]
    assert [len(each) for each in found] == [ranges.length(n) for n in range(ranges.count)]
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(shuffled(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_an_order_is_the_same_for_ever():
    assert shuffled(10, seed=7, epoch=3).tolist() == [7, 4, 1, 6, 8, 3, 5, 2, 9, 0]


def test_without_shuffling_items_come_as_they_are():
    assert shuffled(5, seed=7, epoch=3, shuffle=False).tolist() == [0, 1, 2, 3, 4]
