"""Calls that do not fit each other: all get an error that names both sides, and go on."""

import re
import time

import numpy as np
import pytest
import torch
from support.collective_nodes import met_nodes, rank_of
from support.times import at_most

from dpwa.errors import MismatchError

LARGE = 50_000
LONGEST_S = 1.0


@pytest.fixture(scope="module", params=["auto", "tcp"])
def nodes(request):
    with met_nodes(3, transport=request.param) as opened:
        yield opened


def reduce(value, op="sum"):
    return lambda node: node.all_reduce(value, op)


def assert_mismatch(nodes, usual, odd, text, odd_one="w2"):
    """Let one node call something else than the others, and check what comes of it."""

    def call(node):
        start = time.monotonic()
        try:
            with pytest.raises(MismatchError, match=text):
                (odd if node.name == odd_one else usual)(node)
        finally:
            took_s = time.monotonic() - start
        return took_s

    assert max(nodes.each(call).values()) < at_most(LONGEST_S)
    assert nodes.each(lambda node: node.all_reduce(1)) == dict.fromkeys(nodes.names, (3, 3))
    assert nodes["w1"].members == nodes.names


DIFFERENT_VALUES = {
    "shape": (np.ones(3), np.ones(4), r"w1 has .*float64\[3\], w2 has .*float64\[4\]"),
    "dimensions": (np.ones((3, 1)), np.ones(3), r"w1 has .*\[3, 1\].*, w2 has .*\[3\]"),
    "dtype": (np.ones(3), np.ones(3, np.float32), "w1 has .*float64.*, w2 has .*float32"),
    "tensor": (torch.ones(3), torch.ones(3, dtype=torch.bfloat16), "float32.*bfloat16"),
    "number": (1, 1.0, "int64.*float64"),
    "leaves": ([1, 2], [1, 2, 3], "w1 has 2 leaves, w2 has 3"),
    "key": ({"a": 1, "b": 2}, {"a": 1, "c": 2}, r"w1 has .\['b'\].*, w2 has .\['c'\]"),
    "nesting": ({"a": [1, 2]}, {"a": 1}, r"w1 has .\['a'\]\[0\].*, w2 has .\['a'\]"),
    "nothing": ([], [1], "w1 has 0 leaves, w2 has 1"),
    "large shape": (np.ones(LARGE), np.ones(LARGE + 1), f"{LARGE}.*{LARGE + 1}"),
    "large and small": (np.ones(LARGE), np.ones(1), rf"\[{LARGE}\].*\[1\]"),
    "far in the list": ([1] * 100, [1] * 99 + [1.0], "differ after the first 16 leaves"),
}


@pytest.mark.parametrize("kind", DIFFERENT_VALUES)
def test_values_of_different_form(nodes, kind):
    usual, odd, text = DIFFERENT_VALUES[kind]
    assert_mismatch(
        nodes,
        reduce(usual),
        reduce(odd),
        f"members differ in the values of all_reduce sum: .*{text}",
    )
    assert_mismatch(
        nodes,
        lambda node: node.broadcast(usual, "w3"),
        lambda node: node.broadcast(odd, "w3"),
        f"members differ in the values of broadcast from w3: .*{text}",
    )


@pytest.mark.parametrize("size", [1, LARGE])
def test_different_calls(nodes, size):
    value = np.ones(size)
    calls = {
        "all_reduce sum": reduce(value),
        "all_reduce max": reduce(value, "max"),
        "broadcast from w1": lambda node: node.broadcast(value, "w1"),
        "broadcast from w2": lambda node: node.broadcast(value, "w2"),
        "all_gather": lambda node: node.all_gather(value),
        "barrier": lambda node: node.barrier(),
    }
    names = list(calls)
    for usual, odd in zip(names, names[1:] + names[:1], strict=True):
        text = re.escape(f"w1 called {usual}, w3 called {odd}")
        assert_mismatch(nodes, calls[usual], calls[odd], rf"^{text} \[DPWA-E230\]$", odd_one="w3")


def test_the_first_node_may_be_the_odd_one(nodes):
    text = r"^w1 called barrier, w2 called all_reduce sum \[DPWA-E230\]$"
    assert_mismatch(nodes, reduce(1), lambda node: node.barrier(), text, odd_one="w1")


def test_nodes_that_are_one_call_ahead_are_found_out(nodes):
    """One has forgotten a barrier: the others are told, and so is it."""

    def call(node):
        if node.name != "w2":
            with pytest.raises(MismatchError, match="w1 called barrier, w2 called all_reduce sum"):
                node.barrier()
        else:
            with pytest.raises(MismatchError, match="w1 called barrier, w2 called all_reduce sum"):
                node.all_reduce(1)
        return node.all_reduce(2)

    assert nodes.each(call) == dict.fromkeys(nodes.names, (6, 3))


@pytest.mark.parametrize("size", [3, LARGE])
def test_values_are_as_they_were(nodes, size):
    def call(node):
        value = {"x": np.full(size, float(rank_of(node))), "y": torch.full((5,), rank_of(node))}
        if node.name == "w3":
            value["z"] = 1
        with pytest.raises(MismatchError):
            node.all_reduce(value)
        return (value["x"] == rank_of(node)).all() and bool((value["y"] == rank_of(node)).all())

    assert all(nodes.each(call).values())


def test_structures_of_lists_and_tuples_are_equal_if_their_leaves_are(nodes):
    def call(node):
        value = (1, [2.0]) if node.name == "w1" else [1, (2.0,)]
        return node.all_reduce(value)[0]

    results = nodes.each(call)
    assert results == {"w1": (3, [6.0]), "w2": [3, (6.0,)], "w3": [3, (6.0,)]}
