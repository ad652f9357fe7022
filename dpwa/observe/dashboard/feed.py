"""Feed: what the page of the dashboard is told of a run, as plain JSON.

All numbers are finite or null; an infinite loss is the text "inf".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict

import numpy as np

from dpwa.observe.events import RunEvent, keep
from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES, since_restart
from dpwa.observe.rows import NodeRow, rows_of
from dpwa.observe.run_view import Followed, RunView
from dpwa.types import JsonObject

FRESH_S = 15.0  # merges that are shown as edges
MOST_POINTS = 400  # of a node, in a snapshot of a small run
MOST_POINTS_OF_ALL = 16_000
MOST_EDGES = 256
FIRST_EVENTS = 200
MOST_TOLD = 4_000  # events that are remembered, so that each is told once
BUDGET_POINTS = 120

# The columns of a point.
_POINT = ("loss", "consensus_distance", "clock")


class Feed:
    """Tells what is known of a run, and what has changed since it was asked last.

    Args:
        view: returns what is known now.
    """

    def __init__(self, view: Callable[[], RunView]) -> None:
        self._view = view
        self._told: dict[str, float] = {}  # until when the points of each node were told
        self._events: deque[RunEvent] = deque(maxlen=MOST_TOLD)  # that were told
        self._known: set[RunEvent] = set()

    def snapshot(self) -> JsonObject:
        """Return all that was told so far: the next `update` goes on from there."""
        view = self._view()
        if not self._told:
            self._take(view)
        most = max(MOST_POINTS_OF_ALL // max(len(view.nodes), 1), 50)
        points = {}
        for node in view.nodes:
            rows = node.history.since()
            rows = rows[rows[:, 0] <= self._told.get(node.name, -math.inf)]
            points[node.name] = _points(_thinned(rows, min(most, MOST_POINTS)))
        return {
            **_state(view),
            "points": points,
            "events": [_event(event) for event in list(self._events)[-FIRST_EVENTS:]],
        }

    def update(self) -> JsonObject:
        """Return the state of the run, and the points and events that are new."""
        view = self._view()
        points, events = self._take(view)
        return {**_state(view), "points": points, "events": [_event(event) for event in events]}

    def node(self, name: str) -> JsonObject | None:
        """Return more of one node; `None` if nobody knows it."""
        found = next((node for node in self._view().nodes if node.name == name), None)
        if found is None:
            return None
        rows = found.history.since()
        newest = rows[-1, 1:] if len(rows) else np.full(len(NAMES), math.nan)
        return {
            "name": name,
            "budget": _budget(since_restart(rows)),
            "peers": [_plain(peer._asdict()) for peer in found.peers],
            "figures": {key: number(newest[index]) for key, index in INDEX.items()},
        }

    def _take(self, view: RunView) -> tuple[JsonObject, list[RunEvent]]:
        points: JsonObject = {}
        for node in view.nodes:
            # One point more than is new: rates are taken between two.
            since = self._told.get(node.name, -math.inf)
            rows = node.history.since(since - 20.0)
            first = int(np.searchsorted(rows[:, 0], since, "right"))
            if first < len(rows):
                points[node.name] = _points(rows[max(first - 1, 0) :])[1 if first else 0 :]
                self._told[node.name] = float(rows[-1, 0])
        events = [event for event in view.events if event not in self._known]
        for event in events:
            keep(self._events, event)
        self._known = set(self._events) if len(self._known) > 2 * MOST_TOLD else self._known
        self._known.update(events)
        return points, events


def number(value: float | None) -> float | str | None:
    """Return a number as JSON can have it; an infinite one as text."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(value)


def _state(view: RunView) -> JsonObject:
    nodes = {node.name: node for node in view.nodes}
    return {
        "time": view.time,
        "through": view.through,
        "title": _title(view),
        "nodes": [_node(row, nodes[row.name]) for row in rows_of(view, losses=1)],
        "edges": _edges(view),
    }


def _title(view: RunView) -> str:
    told = next((node.answer for node in view.nodes if node.answer is not None), None)
    return "" if told is None else f"{told.algorithm}, topology {told.topology}"


def _node(row: NodeRow, node: Followed) -> JsonObject:
    rates, answer = row.rates, node.answer
    return {
        "name": row.name,
        "state": row.state,
        "waits_for": row.waits_for,
        "through": row.through,
        "verdicts": [asdict(verdict) for verdict in row.verdicts],
        "loss": number(row.loss),
        "clock": number(row.clock),
        "consensus_distance": number(row.consensus_distance),
        "score": number(row.score),
        "steps_per_s": number(rates.steps_per_s),
        "merges_per_s": number(rates.merges_per_s),
        "shares": rates.shares,
        "received_per_s": number(rates.received_per_s),
        "sent_per_s": number(rates.sent_per_s),
        "staleness": number(rates.staleness),
        "host": None if answer is None else answer.host,
        "pid": None if answer is None else answer.pid,
        "algorithm": None if answer is None else answer.algorithm,
        "topology": None if answer is None else answer.topology,
        "group": None if answer is None else answer.group,
        "endpoint": node.endpoint,
        "problem": node.problem,
        "silent_s": node.silent_s,
    }


def _edges(view: RunView) -> list[JsonObject]:
    """Return who has merged from whom in the last seconds, the newest first."""
    found = [
        {"from": peer.name, "to": node.name, "age_s": peer.merged_s, "staleness": peer.staleness}
        for node in view.nodes
        if not node.silent_s
        for peer in node.peers
        if peer.merged_s is not None and peer.merged_s <= FRESH_S
    ]
    found.sort(key=lambda edge: edge["age_s"] or 0.0)
    return found[:MOST_EDGES]


def _points(rows: Floats) -> list[list[float | str | None]]:
    """Return `[time, loss, consensus distance, steps/s, clock]` of each sample."""
    steps = np.diff(rows[:, 1 + INDEX["steps"]], prepend=math.nan)
    seconds = np.diff(rows[:, 0], prepend=math.nan)
    speeds = np.where(steps >= 0, steps / seconds, math.nan)
    columns = [rows[:, 1 + INDEX[name]] for name in _POINT]
    points = zip(rows[:, 0], columns[0], columns[1], speeds, columns[2], strict=True)
    return [[number(value) for value in point] for point in points]


def _thinned(rows: Floats, most: int) -> Floats:
    """Return about so many samples, the newest among them."""
    stride = -(-len(rows) // most) if most else 1
    return rows[(len(rows) - 1) % stride :: stride] if stride > 1 else rows


def _budget(rows: Floats) -> list[list[float | str | None]]:
    """Return `[time, train, publish, wait, merge]`: shares of the time between samples."""
    rows = _thinned(rows, BUDGET_POINTS)
    spent = np.diff(rows[:, [1 + INDEX[f"{activity}_s"] for activity in ACTIVITIES]], axis=0)
    total = spent.sum(axis=1, keepdims=True)
    shares = np.divide(spent, total, out=np.full_like(spent, math.nan), where=total > 0)
    times = rows[1:, 0]
    return [[number(t), *map(number, share)] for t, share in zip(times, shares, strict=True)]


def _event(event: RunEvent) -> JsonObject:
    return {key: value for key, value in asdict(event).items() if key != "number"}


def _plain(values: JsonObject) -> JsonObject:
    floats: Iterable[tuple[str, object]] = values.items()
    return {k: number(v) if isinstance(v, float) else v for k, v in floats}
