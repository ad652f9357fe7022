"""SharedSampler where nodes come and go, and where nobody is there any more."""

import pytest
from support.collective_nodes import collective_nodes
from support.open_cluster import cluster
from torch.utils.data import DataLoader

from dpwa.dataset import SharedSampler
from dpwa.errors import TableTimeoutError

SIZE, RANGE = 200, 10


def batches_of(sampler):
    loader = DataLoader(range(SIZE), batch_size=RANGE, sampler=sampler)
    return (batch.tolist() for batch in sampler.batches(loader))


def test_a_newcomer_takes_what_is_left_and_who_leaves_is_not_waited_for():
    with cluster(initial_state="own") as nodes:
        first = SharedSampler(SIZE, nodes.add("z"), range_size=RANGE)
        batches = batches_of(first)
        seen = [item for _ in range(3) for item in next(batches)]
        is_over_before = first.is_over()
        newcomer = SharedSampler(SIZE, nodes.add("a", "z"), range_size=RANGE)
        others = batches_of(newcomer)
        seen += next(others)
        nodes.close("z")  # it has not asked for another batch after its third: that is seen again
        seen += [item for batch in others for item in batch]
        newcomer.close()
    assert not is_over_before
    assert set(seen) == set(range(SIZE))
    assert len(seen) == SIZE + RANGE


def test_who_comes_when_all_others_are_gone_is_told():
    with (
        collective_nodes(2, there=1, collective_timeout_s=0.5) as nodes,
        pytest.raises(TableTimeoutError, match="took longer than the time limit"),
    ):
        SharedSampler(SIZE, nodes["w1"], range_size=RANGE)
