"""Nodes with unequal numbers of steps: who has no data left joins, and nobody waits for it."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.collective_nodes import collective_nodes, met_nodes, rank_of
from support.examples import examples

from dpwa.errors import MismatchError

COUNT = 4
SIZES = (1, 3000, 100_003)


@pytest.fixture(scope="module", params=["auto", "tcp"])
def nodes(request):
    with met_nodes(COUNT, transport=request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair():
    with met_nodes(2) as opened:
        yield opened


def brought(rank, step, size):
    return np.random.default_rng([rank, step]).normal(size=size)


@examples(25)
@given(
    counts=st.tuples(*[st.integers(0, 5)] * COUNT),
    size=st.sampled_from(SIZES),
    op=st.sampled_from(["sum", "mean"]),
)
@example(counts=[0, 0, 0, 0], size=1, op="sum")
@example(counts=[0, 0, 0, 5], size=100_003, op="mean")
@example(counts=[5, 0, 0, 0], size=100_003, op="mean")
def test_any_numbers_of_steps_end_with_the_right_contributors(nodes, counts, size, op):
    assert_right_contributors(nodes, counts, size, op)


@examples(15)
@given(
    counts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    size=st.sampled_from(SIZES),
    op=st.sampled_from(["sum", "mean"]),
)
def test_any_numbers_of_steps_of_a_pair_end_with_the_right_contributors(pair, counts, size, op):
    assert_right_contributors(pair, counts, size, op)


def assert_right_contributors(nodes, counts, size, op):
    def train(node):
        rank = rank_of(node)
        seen = [
            node.all_reduce(brought(rank, step, size), op, tag="train")
            for step in range(counts[rank])
        ]
        node.join(tag="train")
        return seen

    runs = nodes.each(train)
    for step in range(max(counts)):
        ranks = [rank for rank, count in enumerate(counts) if count > step]
        values = np.array([brought(rank, step, size) for rank in ranks])
        seen = [runs[nodes.names[rank]][step] for rank in ranks]
        assert [contributors for _, contributors in seen] == [len(ranks)] * len(ranks)
        assert len({value.tobytes() for value, _ in seen}) == 1
        bound = COUNT * np.finfo(float).eps * np.abs(values).sum(axis=0)
        wanted = values.sum(axis=0) if op == "sum" else values.mean(axis=0)
        assert np.all(np.abs(seen[0][0] - wanted) <= bound)


def test_after_all_have_joined_a_new_round_of_steps_begins(nodes):
    def train(node):
        for steps in (rank_of(node), 3 - rank_of(node)):
            for _ in range(steps):
                node.all_reduce(1.0)
            node.join()
        return node.all_reduce(1.0)

    assert nodes.each(train) == dict.fromkeys(nodes.names, (4.0, 4))


def test_who_has_joined_is_not_gathered_and_passes_barriers(nodes):
    def train(node):
        if rank_of(node) in (0, 2):
            return node.join()
        node.barrier()
        gathered = node.all_gather(bytes(20_000 * rank_of(node)))
        value = node.broadcast(np.full(50_000, rank_of(node)), "w4")
        node.join()
        return list(gathered), int(value[0])

    assert nodes.each(train) == {
        "w1": None,
        "w2": (["w2", "w4"], 3),
        "w3": None,
        "w4": (["w2", "w4"], 3),
    }


def test_a_value_from_a_root_that_has_joined_is_a_mismatch(nodes):
    def train(node):
        if node.name == "w2":
            return node.join()
        value = np.full(3, float(rank_of(node)))
        with pytest.raises(MismatchError, match="w2 takes no part in the broadcast from w2"):
            node.broadcast(value, "w2")
        assert (value == rank_of(node)).all()
        node.join()
        return True

    def joined(node):
        try:
            return train(node)
        except MismatchError:  # those who have joined hear of it, too
            node.join()
            return None

    outcomes = nodes.each(joined)
    assert outcomes == {"w1": True, "w2": None, "w3": True, "w4": True}
    assert nodes.each(lambda node: node.all_reduce(1)[0]) == dict.fromkeys(nodes.names, COUNT)


def test_tags_are_joined_one_by_one():
    """Joining one tag is no part in another."""

    def train(node):
        if node.name == "w1":
            node.join(tag="a")
        else:
            assert node.all_reduce(1, tag="a") == (2, 2)
        result = node.all_reduce(1, tag="b")
        if node.name != "w1":
            node.join(tag="a")
        return result

    with collective_nodes(3, threads=2) as nodes:

        def begin(name):
            if name != "w1":
                return [nodes.begin(name, train)]
            return [
                nodes.begin(name, lambda node: node.join(tag="a")),
                nodes.begin(name, lambda node: node.all_reduce(1, tag="b")),
            ]

        futures = [future for name in nodes.names for future in begin(name)]
        results = [future.result(30) for future in futures]
    assert results == [None, (3, 3), (3, 3), (3, 3)]
