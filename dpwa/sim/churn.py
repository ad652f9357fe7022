"""Times at which simulated nodes start, are killed, return and leave, at random or from a trace.

A trace is CSV with the columns time_s, node and event.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from dpwa.config.document import read_text
from dpwa.config.problems import Place, Problems, shown
from dpwa.errors import ConfigError
from dpwa.sim.draws import Purpose, generator, share_of_nodes
from dpwa.sim.scenario import Scenario

COLUMNS = ("time_s", "node", "event")
EVENTS = ("start", "kill", "leave")

TraceLine = tuple[float, int, str]


def read_trace(path: str, nodes: int) -> tuple[TraceLine, ...]:
    """Read a trace (CSV), and return its events by time: (seconds, node index, one of `EVENTS`).

    Raises ConfigError with all mistakes and their lines if the file cannot be read, or has
    mistakes.
    """
    problems = Problems()
    lines = list(_lines(path, read_text(path), nodes, problems))
    if problems.lines():
        raise ConfigError(problems.lines())
    return tuple(sorted(lines, key=lambda line: line[0]))


def _lines(path: str, text: str, nodes: int, problems: Problems) -> Iterator[TraceLine]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    header = [name.strip() for name in next(rows, [])]
    if sorted(header) != sorted(COLUMNS):
        expected = f"expected the columns {', '.join(COLUMNS)}"
        problems.add(Place(path, 1, 1), (), f"{expected} (got {shown(','.join(header))})")
        return
    for cells in rows:
        if any(cell.strip() for cell in cells):
            line = _line(dict(zip(header, cells, strict=False)), nodes)
            if isinstance(line, str):
                problems.add(Place(path, rows.line_num, 1), (), line)
            else:
                yield line


def _line(cells: dict[str, str], nodes: int) -> TraceLine | str:
    texts: Sequence[str] = [cells.get(column, "").strip() for column in COLUMNS]
    try:
        time_s = float(texts[0])
    except ValueError:
        time_s = math.nan
    if not 0.0 <= time_s < math.inf:
        return f"time_s: expected seconds from 0 on (got {shown(texts[0])})"
    if not texts[1].isdecimal() or int(texts[1]) >= nodes:
        return f"node: expected a number from 0 to {nodes - 1} (got {shown(texts[1])})"
    if texts[2] not in EVENTS:
        return f"event: expected one of {', '.join(EVENTS)} (got {shown(texts[2])})"
    return time_s, int(texts[1]), texts[2]


class NodeChangeKind(Enum):
    """The kinds of changes, with their texts in the events of a run."""

    START = "starts"
    KILL = "is killed"  # without a goodbye
    RETURN = "is back"  # as a new process, after a kill or a leave
    LEAVE = "leaves"  # with a goodbye

    def told_of(self, name: str) -> str:
        return f"{name} {self.value}"


class NodeChange(NamedTuple):
    time_s: float
    node: int
    kind: NodeChangeKind


_KILL_ANY = -1  # in place of an index: kill a random living node


def node_changes(scenario: Scenario) -> Iterator[NodeChange]:
    """Yield node changes in order of time. They never end if nodes are killed and return forever.

    No dead node is killed, and no living node starts. If the first line of a node in the trace is a
    start, the node starts then. All other nodes start within `start_spread_s`.
    """
    return _changes(scenario, _planned(scenario))  # raises before the first change is asked for


def _planned(scenario: Scenario) -> list[NodeChange]:
    churn, nodes, seed = scenario.churn, scenario.nodes, scenario.seed
    trace = read_trace(churn.trace, nodes) if churn.trace else ()
    traced = [NodeChange(at_s, node, NodeChangeKind[kind.upper()]) for at_s, node, kind in trace]
    first = {change.node: change.kind for change in reversed(traced)}
    spread = generator(seed, Purpose.START).uniform(0.0, churn.start_spread_s, nodes)
    starts = [
        NodeChange(float(spread[node]), node, NodeChangeKind.START)
        for node in range(nodes)
        if first.get(node) is not NodeChangeKind.START
    ]
    lost = []
    for index, loss in enumerate(churn.lost):
        rng = generator(seed, Purpose.LOSS, index)
        drawn = rng.choice(nodes, size=share_of_nodes(nodes, loss.share), replace=False).tolist()
        lost += [NodeChange(loss.at_s, node, NodeChangeKind.KILL) for node in drawn]
        if churn.return_after_s is not None:
            back_s = loss.at_s + rng.exponential(churn.return_after_s, len(drawn))
            returns = zip(back_s.tolist(), drawn, strict=True)
            lost += [NodeChange(at_s, node, NodeChangeKind.RETURN) for at_s, node in returns]
    return sorted([*starts, *lost, *traced], key=lambda change: change.time_s)


def _changes(scenario: Scenario, planned: Sequence[NodeChange]) -> Iterator[NodeChange]:
    churn = scenario.churn
    rng = generator(scenario.seed, Purpose.KILL)
    living, have_lived = list[int](), set[int]()
    queue = [(change.time_s, order, change) for order, change in enumerate(planned)]
    order = len(queue)  # a sorted list is a heap

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
                return  # no node is left, and no node returns
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
        else:  # the last node takes the place
            living[living.index(node)] = living[-1]
            living.pop()
        yield NodeChange(time_s, node, kind)
