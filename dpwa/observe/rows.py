"""Turns a view of a run into rows, one for each node, with the problems of the node."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dpwa.observe.figures import INDEX
from dpwa.observe.rates import UNKNOWN, Rates, latest, rates_of_newest
from dpwa.observe.run_view import Followed, RunView
from dpwa.observe.verdicts import LOST, MIN_WINDOW_S, Condition, NodeVerdict, verdicts

WINDOW_S = 10.0  # the time that rates cover


@dataclass(frozen=True)
class NodeRow:
    """The data about one node of a run, for display.

    Attributes:
        name: name of the node.
        state: `live`, `finishing` (the node has taken its last step, and is still in `finish`),
            `finished`, `silent` (it no longer answers), `left` (it ended without `finish`) or
            `unknown` (there is no report about the node yet).
        through: the node that reports about this node, if this node never answered. Or empty.
        loss: newest loss. Infinite once the node has diverged. `None` if it is unknown.
        clock: training clock of the node.
        steps: training steps of this process so far.
        consensus_distance: distance from the last merged peer. 0 while the node is in sync.
        score: mean of the scores that peers give the node, up to 1000. `None` if it is absent.
        rates: rates over the last seconds. Unknown while the node does not answer.
        verdicts: the problems of the node.
        losses: the newest losses, oldest first, at most one per second. Unknown losses are NaN.
        problem: why the node does not answer, in words. Empty if it answers, or if unknown.
        waits_for: names of the nodes that this node waits for while it is finishing.
        averages: whether the node averages gradients with others, as `together` does.
        in_sync: names of the nodes in sync, with this node. Empty if this node is out of sync.
        out_of_sync_s: seconds since the node got out of sync. `None`: the node is in sync, or
            averages no gradients, or does not train.
        merges: merges of this process so far. `None` if unknown.
        mapped_bytes: bytes that this process has read from the memory of peers. `None` if unknown.
    """

    name: str
    state: str
    through: str
    loss: float | None
    clock: float | None
    consensus_distance: float | None
    score: float | None
    rates: Rates
    verdicts: tuple[NodeVerdict, ...]
    losses: tuple[float, ...]
    problem: str = ""
    waits_for: tuple[str, ...] = ()
    averages: bool = False
    in_sync: tuple[str, ...] = ()
    out_of_sync_s: float | None = None
    merges: float | None = None
    mapped_bytes: float | None = None
    steps: float | None = None


def rows_of(view: RunView, window_s: float = WINDOW_S, losses: int = 60) -> list[NodeRow]:
    """Return a row for each node, in the order in which the nodes were found.

    Args:
        view: the view of the run.
        window_s: the time that rates cover, in seconds.
        losses: maximum number of losses in a row.
    """
    said = _said(view)
    newest = {node.name: node.history.newest(0.0) for node in view.nodes}
    conditions = {
        node.name: Condition(
            rates=UNKNOWN
            if node.silent_s
            else rates_of_newest(node.history, window_s, trains=node.ending is None),
            loss=latest(newest[node.name], "loss"),
            silent_s=node.silent_s,
            has_answered=node.answer is not None,
            problem=_problem(node, said[node.name]),
            heard_s=said[node.name].heard_s,
            end=_end(node, said[node.name]),
            said=said[node.name].health,
            quarantined_by=said[node.name].quarantined_by,
            trains=node.ending is None,
            out_of_sync_s=None if node.sync is None else node.sync.out_of_sync_s,
            is_alone=node.averages_alone and sum(_averages(other) for other in view.nodes) > 1,
        )
        for node in view.nodes
    }
    is_known = {
        n.name: n.answer is not None or (n.silent_s > 0.0 and bool(said[n.name].health))
        for n in view.nodes
    }
    found = verdicts({name: c for name, c in conditions.items() if is_known[name]})
    rows = []
    for node in view.nodes:
        condition, sample = conditions[node.name], newest[node.name]
        verdicts_of = tuple(found.get(node.name, ()))
        is_there = not node.silent_s or any(v.kind == "no answer" for v in verdicts_of)
        scores = said[node.name].scores if is_there else []
        row = NodeRow(
            name=node.name,
            state=_state(node, condition, is_known=is_known[node.name]),
            through="",
            loss=condition.loss,
            clock=latest(sample, "clock"),
            consensus_distance=latest(sample, "consensus_distance"),
            score=sum(scores) / len(scores) if scores else None,
            rates=condition.rates,
            verdicts=verdicts_of,
            losses=tuple(node.history.newest(losses)[-losses:, 1 + INDEX["loss"]].tolist()),
            problem=condition.problem,
            waits_for=node.ending.waits_for if node.ending else (),
            averages=node.answer is not None and node.answer.sync is not None,
            in_sync=() if node.sync is None else node.sync.in_sync,
            out_of_sync_s=condition.out_of_sync_s,
            merges=latest(sample, "merges"),
            mapped_bytes=latest(sample, "mapped_bytes"),
            steps=latest(sample, "steps"),
        )
        rows.append(_told(row, node, view.through) if node.answer is None else row)
    return rows


def missing(rows: Sequence[NodeRow]) -> dict[str, str]:
    """Return the figures that no node has, each with the reason in words.

    The reason is empty if the figure has no meaning in this run, such as rounds without `together`.
    """
    averages, merges = any(row.averages for row in rows), any(row.merges for row in rows)
    found = {} if averages else {"rounds": ""}
    if not any(row.mapped_bytes for row in rows):
        found["mapped"] = ""
    if max((row.rates.seconds for row in rows), default=0.0) < MIN_WINDOW_S:
        return found  # other figures may follow
    if not trains(rows):
        none = ("loss", "clock", "steps", "wait", "rounds", "merges", "staleness", "distance")
        return dict.fromkeys(none, "no node has taken a training step") | found
    if all(row.loss is None for row in rows):
        found["loss"] = "no node has passed a loss to update_send or step"
    if not merges:
        in_sync = "nodes in sync merge no snapshots" if averages else "no snapshot was merged yet"
        found |= {"staleness": in_sync} | ({"merges": in_sync} if averages else {})
    if all(row.consensus_distance is None for row in rows):
        measure = "only the adapters for PyTorch measure this distance, at each merge"
        found["distance"] = measure if merges else "merges measure it, and there was no merge yet"
    return found


def trains(rows: Sequence[NodeRow]) -> bool:
    """Return whether any node has trained. A run may use only collectives or tables."""
    return any(row.clock or row.loss is not None for row in rows)


def groups(rows: Sequence[NodeRow]) -> list[tuple[str, ...]]:
    """Return the groups of nodes that average gradients together. Usually there is at most one.

    Nodes report at different moments. So if reports differ, the most frequent report counts.
    """
    told = Counter(row.in_sync for row in rows if len(row.in_sync) > 1 and row.state == "live")
    found: list[tuple[str, ...]] = []
    for names, _ in told.most_common():
        if {*names}.isdisjoint(itertools.chain.from_iterable(found)):
            found.append(names)
    return found


def _averages(node: Followed) -> bool:
    """Return whether a node trains, and averages gradients, even if it is alone."""
    return node.sync is not None and node.ending is None


@dataclass
class _Said:
    """The reports of other nodes about a node."""

    health: dict[str, str] = field(default_factory=dict)  # health or status, by the reporter's name
    scores: list[int] = field(default_factory=list)
    quarantined_by: list[str] = field(default_factory=list)
    heard_s: float | None = None  # seconds since the node's last message to any of them


def _said(view: RunView) -> dict[str, _Said]:
    found = {node.name: _Said() for node in view.nodes}
    for node in view.nodes:
        if node.answer is None or node.silent_s:
            continue
        for peer in node.answer.peers:
            if peer.name not in found:
                continue
            said = found[peer.name]
            if peer.heard_s is not None:
                said.scores.append(peer.score)
                told = peer.heard_s if said.heard_s is None else said.heard_s
                said.heard_s = min(peer.heard_s, told)
            if peer.health != "unknown":
                said.health[node.name] = peer.health
            if peer.quarantined:
                said.quarantined_by.append(node.name)
        for member in node.answer.members:
            if member.name in found and member.name != node.name and member.status != "alive":
                found[member.name].health[node.name] = member.status
    return found


def _told(row: NodeRow, node: Followed, through: str) -> NodeRow:
    """Return the row of a node that never answered, with another node's report about it."""
    told = node.told.newest(math.inf)
    if not len(told):
        return row
    clock, _, loss, _ = (None if math.isnan(value) else float(value) for value in told[-1, 1:])
    return replace(row, through=through, clock=clock, loss=loss)


def _end(node: Followed, said: _Said) -> str:
    """Return the end of a node that does not answer: `finished`, `left`, or "" if unknown."""
    if not node.silent_s:
        return ""
    end, health = node.answer.end if node.answer else "", set(said.health.values())
    if node.answer is not None and node.answer.ended is not None:
        return end
    has_left = "left" in health
    if "finished" in health or (end and (has_left or health.isdisjoint(LOST))):
        return "finished"
    return "left" if has_left else ""


def _problem(node: Followed, said: _Said) -> str:
    """Return why a node does not answer, or the problem of its end if the node has ended."""
    if _end(node, said):
        return "" if node.answer is None else node.answer.ended or ""
    return node.problem


def _state(node: Followed, condition: Condition, *, is_known: bool) -> str:
    if not is_known:
        return "unknown"
    if condition.end:
        return condition.end
    if node.silent_s:
        return "silent"
    return "live" if node.ending is None else "finished" if node.ending.is_over else "finishing"
