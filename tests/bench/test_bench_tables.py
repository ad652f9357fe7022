"""What a process does with a table while it is timed."""

import numpy as np
import pytest

from dpwa.bench.measures.tables import OnTable, TableWork


class LocalTable:
    """A table of this process alone."""

    def __init__(self, rows):
        self.values = np.zeros((rows, 2), np.float32)
        self.got = []

    def get(self, row_ids=None):
        self.got.append(row_ids)

    def add(self, data, row_ids=None, *, sync=False):
        self.values[slice(None) if row_ids is None else row_ids] += data


@pytest.fixture
def work():
    table = LocalTable(1000)
    return TableWork(table, np.ones_like(table.values), np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["add_rows", "add_rows_async"])
def test_one_percent_of_the_rows_is_added_to_each_of_them_once(work, kind):
    getattr(work, kind)()
    assert sorted(work.table.values.sum(axis=1).tolist())[-11:] == [0, *[2] * 10]


def test_all_rows_are_added_to(work):
    work.add_all()
    assert np.all(work.table.values == 1)


def test_other_rows_are_drawn_before_each_repetition_and_all_is_settled_after_it(work):
    settled = []
    measure = OnTable(
        "get",
        work.get_rows,
        work.draw,
        lambda: settled.append(len(work.table.got)),
        takes_part=True,
    )
    for _ in range(2):
        measure.prepare()
        assert set(measure.run()) == {"get"}
    first, second = work.table.got
    assert len(first) == len(set(first)) == 10
    assert set(first) != set(second)
    assert settled == [1, 2]
