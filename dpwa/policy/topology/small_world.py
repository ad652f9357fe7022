"""Small worlds: rings with shortcuts, the same on every node of a run."""

from __future__ import annotations

import random
from functools import lru_cache


@lru_cache(maxsize=8)  # every node asks for its part of the same graph, round after round
def small_world_graph(
    nodes: int, neighbours: int, rewired: float, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Return the sorted neighbours of each node in a graph of Watts and Strogatz (1998).

    On a ring each node has edges to the `neighbours` nearest ones. Then each edge's far end moves,
    with probability `rewired`, to a node drawn from all that are no neighbours yet. An edge of the
    ring is put back wherever the graph would fall apart otherwise, so it is always connected.

    Args:
        nodes: how many there are.
        neighbours: how many each has at first, even; if there are not that many others, all.
        rewired: the share of edges to move, 0 to 1.
        seed: decides, with the number of nodes, what is drawn.
    """
    rng = random.Random(f"{seed} {nodes}")
    graph = [_nearest(index, nodes, neighbours) for index in range(nodes)]
    for distance in range(1, min(neighbours // 2, (nodes - 1) // 2) + 1):
        for index in range(nodes):
            if rng.random() < rewired:
                _rewire(graph, index, (index + distance) % nodes, rng)
    _join(graph)
    return tuple(tuple(sorted(others)) for others in graph)


def _nearest(index: int, nodes: int, neighbours: int) -> set[int]:
    half = neighbours // 2
    return {other % nodes for other in range(index - half, index + half + 1)} - {index}


def _rewire(graph: list[set[int]], index: int, other: int, rng: random.Random) -> None:
    """Move the far end of an edge; it stays when it has moved before, or nobody is left for it."""
    taken = graph[index]
    if other not in taken or len(taken) == len(graph) - 1:
        return
    drawn = index
    while drawn == index or drawn in taken:
        # Of `Random`, only `random()` promises the same numbers in every version of Python.
        drawn = int(rng.random() * len(graph))
    _disconnect(graph, index, other)
    _connect(graph, index, drawn)


def _join(graph: list[set[int]]) -> None:
    """Connect each node to the next one on the ring that it cannot reach."""
    part = _parts(graph)
    for index in range(len(graph) - 1):
        if part[index] != part[index + 1]:
            _connect(graph, index, index + 1)
            merged = part[index + 1]
            part = [part[index] if number == merged else number for number in part]


def _parts(graph: list[set[int]]) -> list[int]:
    """Return for each node the number of the connected part that it lies in."""
    part = [-1] * len(graph)
    for start in range(len(graph)):
        waiting = [start] if part[start] < 0 else []
        while waiting:
            node = waiting.pop()
            part[node] = start
            waiting += [other for other in graph[node] if part[other] < 0]
    return part


def _connect(graph: list[set[int]], one: int, two: int) -> None:
    graph[one].add(two)
    graph[two].add(one)


def _disconnect(graph: list[set[int]], one: int, two: int) -> None:
    graph[one].discard(two)
    graph[two].discard(one)
