"""How far what a node learns has to travel, and whether it reaches everybody."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def diameter(adjacency: NDArray[np.bool_]) -> int | None:
    """Return the most hops between any two nodes, or `None` if some can never be reached.

    Args:
        adjacency: shape `(N, N)`; [i, j] tells whether node i pulls from node j.
    """
    hops, missing = _spread(adjacency)
    return hops if missing is None else None


def is_connected(adjacency: NDArray[np.bool_]) -> bool:
    """Tell whether everybody reaches everybody (strongly connected), shape as of `diameter`."""
    return unreachable(adjacency) is None


def unreachable(adjacency: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return the first `(i, j)` such that nothing of node j ever comes to node i, if any.

    Args:
        adjacency: shape `(N, N)`; [i, j] tells whether node i pulls from node j.
    """
    pullers, sources = np.nonzero(adjacency)
    count = len(adjacency)
    if _reaches_all(pullers, sources, count) and _reaches_all(sources, pullers, count):
        return None  # node 0 hears of everybody, and everybody of it: N edges, not N^2
    return _spread(adjacency)[1]


def _reaches_all(starts: NDArray[np.intp], ends: NDArray[np.intp], nodes: int) -> bool:
    """Tell whether edges lead from node 0 to every node."""
    order = np.argsort(starts, kind="stable")
    ends, bounds = ends[order], np.searchsorted(starts[order], np.arange(nodes + 1))
    seen, waiting = {0}, [0]
    while waiting:
        node = waiting.pop()
        new = set(ends[bounds[node] : bounds[node + 1]].tolist()) - seen
        seen |= new
        waiting += new
    return len(seen) >= nodes


def _spread(adjacency: NDArray[np.bool_]) -> tuple[int, tuple[int, int] | None]:
    """Let everybody learn what their neighbours know, until nobody learns anything new.

    What a node knows is one integer with a bit for each node: one `|` unites thousands of them.
    """
    nodes = len(adjacency)
    everything = (1 << nodes) - 1
    sources = [np.flatnonzero(row).tolist() for row in adjacency]
    knows = [1 << index for index in range(nodes)]
    for hops in range(nodes):
        if all(known == everything for known in knows):
            return hops, None
        learnt = [_united(knows, i, sources[i], everything) for i in range(nodes)]
        if learnt == knows:
            break
        knows = learnt
    index = next(i for i, known in enumerate(knows) if known != everything)
    missing = everything & ~knows[index]
    return nodes, (index, (missing & -missing).bit_length() - 1)


def _united(knows: list[int], index: int, sources: list[int], everything: int) -> int:
    known = knows[index]
    if known != everything:
        for source in sources:
            known |= knows[source]
    return known
