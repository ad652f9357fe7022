"""Collectives of nodes that join each other: where each begins alone, and meets the others."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.nodes import eventually
from support.open_cluster import cluster
from support.times import at_most

TIMEOUT_S = 10.0


@pytest.fixture
def pair():
    """Two nodes that have a connection each, and no collective behind them."""
    with cluster(collective_timeout_s=TIMEOUT_S) as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        nodes.agree()
        assert all(node.wait_for_peers(1, TIMEOUT_S) for node in nodes.nodes.values())
        yield nodes.nodes


def timed_sum(node, timeout_s=TIMEOUT_S):
    """A sum over all; what comes of it, and how long that takes, in seconds."""
    began = time.monotonic()
    result = node.all_reduce(1.0, "sum", timeout_s)
    return result, time.monotonic() - began


@pytest.mark.parametrize("first", "ab")
def test_the_first_collectives_of_two_that_know_each_other_are_one(pair, first):
    """Else the later one comes to a view of the other's, who may never call again."""
    (second,) = set(pair) - {first}
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(timed_sum, pair[first])
        time.sleep(0.2)  # far more than a message takes
        late = pool.submit(timed_sum, pair[second])
        for future in (early, late):
            result, took_s = future.result(2 * TIMEOUT_S)
            assert result == (2.0, 2)
            assert took_s < at_most(TIMEOUT_S / 2)


@pytest.mark.parametrize("name", "ab")
def test_who_calls_no_collectives_is_not_waited_for_again_and_again(pair, name):
    found = []
    for _ in range(3):
        found.append(timed_sum(pair[name], 2.0))
        time.sleep(0.1)  # for the other's answer, if there is one
    assert [result for result, _ in found] == [(1.0, 1)] * 3
    assert sum(took_s for _, took_s in found) < at_most(2.0)


def test_newcomers_come_to_those_who_are_at_work_whatever_their_names():
    counts, is_over = {"z": [], "a": []}, threading.Event()

    def work(name, node):
        while not is_over.is_set():
            counts[name].append(node.all_reduce(1.0, "sum")[1])

    with cluster(collective_timeout_s=TIMEOUT_S) as nodes, ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, "z", nodes.add("z"))]
        try:
            eventually(lambda: len(counts["z"]) > 10)
            futures.append(pool.submit(work, "a", nodes.add("a", "z")))
            eventually(lambda: counts["z"][-1:] == counts["a"][-1:] == [2])
        finally:
            is_over.set()
            nodes.close("z")  # for who waits for it
        assert counts["a"][0] == 2
        assert counts["z"] == sorted(counts["z"])
        for future in futures:
            assert type(future.exception(TIMEOUT_S)).__name__ in (
                "NoneType",
                "PeerLost",
                "ClosedError",
            )
