"""Starts, kills and returns of nodes, all of them random."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Sized
from enum import Enum
from typing import NamedTuple

from dpwa.sim.draws import Purpose, generator, share_of_nodes
from dpwa.sim.scenario import Scenario


class NodeChangeKind(Enum):
    START = "start"
    KILL = "kill"  # without a word
    RETURN = "return"  # as a new process

    def told_of(self, name: str) -> str:
        return f"{name} {_IN_WORDS[self]}"


_IN_WORDS = {
    NodeChangeKind.START: "starts",
    NodeChangeKind.KILL: "is killed",
    NodeChangeKind.RETURN: "is back",
}


def cut_in_words(nodes: Sized | None) -> str:
    """Return a text that these nodes are cut off from the others, or that a partition is over."""
    return "a partition ends" if nodes is None else f"{len(nodes)} nodes are cut off"


class NodeChange(NamedTuple):
    time_s: float
    node: int
    kind: NodeChangeKind


_KILL_ANY = -1  # in the place of a node: a living one is to be drawn


def node_changes(scenario: Scenario) -> Iterator[NodeChange]:
    """Yield the changes of nodes, in order of time, without end if nodes are killed forever.

    Every change takes place, so no dead node is killed, and no living node starts.
    """
    return _changes(scenario, _planned(scenario))


def _planned(scenario: Scenario) -> list[NodeChange]:
    churn, nodes, seed = scenario.churn, scenario.nodes, scenario.seed
    spread = generator(seed, Purpose.START).uniform(0.0, churn.start_spread_s, nodes)
    starts = [NodeChange(float(spread[n]), n, NodeChangeKind.START) for n in range(nodes)]
    lost = []
    for index, loss in enumerate(churn.lost):
        rng = generator(seed, Purpose.LOSS, index)
        drawn = rng.choice(nodes, size=share_of_nodes(nodes, loss.share), replace=False).tolist()
        lost += [NodeChange(loss.at_s, node, NodeChangeKind.KILL) for node in drawn]
        if churn.return_after_s is not None:
            back_s = loss.at_s + rng.exponential(churn.return_after_s, len(drawn))
            returns = zip(back_s.tolist(), drawn, strict=True)
            lost += [NodeChange(at_s, node, NodeChangeKind.RETURN) for at_s, node in returns]
    return sorted([*starts, *lost], key=lambda change: change.time_s)


def _changes(scenario: Scenario, planned: Sequence[NodeChange]) -> Iterator[NodeChange]:
    churn = scenario.churn
    rng = generator(scenario.seed, Purpose.KILL)
    living, have_lived = list[int](), set[int]()
    queue = [(change.time_s, order, change) for order, change in enumerate(planned)]
    order = len(queue)  # sorted, hence a heap

    def push_change(change: NodeChange) -> None:
        nonlocal order
        heapq.heappush(queue, (change.time_s, order, change))
        order += 1

    def next_kill(now_s: float) -> None:
        if churn.kill_every_s is not None:
            time_s = now_s + float(rng.exponential(churn.kill_every_s))
            push_change(NodeChange(time_s, _KILL_ANY, NodeChangeKind.KILL))

    next_kill(0.0)
    while queue:
        change = heapq.heappop(queue)[2]
        time_s, node, kind = change
        if node == _KILL_ANY:
            if not living and not queue:
                return  # nobody is left, and nobody comes back
            next_kill(time_s)
            if not living:
                continue
            node = living[int(rng.integers(len(living)))]
            if churn.return_after_s is not None:
                back_s = time_s + float(rng.exponential(churn.return_after_s))
                push_change(NodeChange(back_s, node, NodeChangeKind.RETURN))
        starts = kind in (NodeChangeKind.START, NodeChangeKind.RETURN)
        if (node in living) is starts:
            continue
        if starts:
            kind = NodeChangeKind.RETURN if node in have_lived else NodeChangeKind.START
            have_lived.add(node)
            living.append(node)
        else:
            living[living.index(node)] = living[-1]
            living.pop()
        yield NodeChange(time_s, node, kind)
