"""What is timed: by those who take part, and per call."""

import time

import pytest

from dpwa.bench.measures.collectives import all_reduce_mean
from dpwa.bench.measures.timed import Timed
from dpwa.bench.processes import BenchmarkError


def test_the_time_of_many_calls_in_a_row_is_that_of_one():
    calls = []

    def work():
        calls.append(1)
        time.sleep(0.002)

    began = time.perf_counter()
    sample = Timed("nap", work, calls=5).run()
    assert len(calls) == 5
    assert 0.002 <= sample["nap"] <= (time.perf_counter() - began) / 5


def test_who_does_not_take_part_does_nothing():
    assert Timed("oh", pytest.fail, takes_part=False).run() == {}


class Lonely:
    """A connection whose peers have gone."""

    class node:  # noqa: N801
        class config:  # noqa: N801
            nodes = ("w1", "w2")

    def all_reduce(self, value, op):
        return value, 1


def test_a_collective_that_not_all_contribute_to_is_no_figure():
    work = all_reduce_mean(Lonely(), None)
    with pytest.raises(BenchmarkError, match="1 of 2 processes have contributed"):
        work()
