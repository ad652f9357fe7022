"""Pure rules that find slow, gone and diverged nodes, and other problems, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from dpwa.config.problems import listing
from dpwa.observe.rates import Rates
from dpwa.policy.health import IN_WORDS, REFUSED, Health

SLOW_FACTOR = 2.0  # times slower than the median of the others
MIN_WINDOW_S = 3.0  # with less time between its first and last sample, no node is called slow
WAITS_MUCH = 0.5  # share of the time
HEARD_S = 5.0  # a node counts as alive if its last message to a peer is at most this old
STALLED_STEPS = 10.0  # a node has stalled if it took no step for this many steps of the others
STALLED_S = 10.0  # minimum seconds without a step before a node has stalled
MAX_NAMES = 3

Severity = Literal["bad", "odd"]


@dataclass(frozen=True)
class NodeVerdict:
    """A problem of a node.

    Attributes:
        kind: `gone`, `no answer` (the node answers its peers, but not this machine), `left`,
            `finished` (with a problem), `diverged`, `stalled`, `slow`, `waiting`, `out of
            sync`, `alone`, `quarantined` or `refused`.
        text: the reason, in words that follow the name of the node.
        severity: `bad` if the node no longer takes part, or harms others. Otherwise `odd`.
    """

    kind: str
    text: str
    severity: Severity


@dataclass(frozen=True)
class Condition:
    """The facts about a node from which its verdicts follow.

    Attributes:
        rates: over the last seconds.
        loss: the newest loss of the node. Infinite once the node has diverged.
        silent_s: seconds since the last answer, or since the first request if there was no answer.
            0 while the node answers. In a run log, seconds since the last line.
        has_answered: whether the node has ever answered.
        problem: why the node does not answer, in words, or the problem of its end. May be empty.
        heard_s: seconds since the node's last message to a peer. `None`: no peer reports this.
        end: `finished`, `left` (the node ended without `finish`), or empty before its end.
        said: health or status of the node, as other nodes report it, by the reporters' names.
        quarantined_by: names of the nodes that have this node in quarantine.
        trains: whether the node still takes steps, as far as is known.
        out_of_sync_s: seconds since the node got out of sync (`together`). `None`: it is in sync,
            or averages no gradients.
        is_alone: whether the node averages gradients with no other node, while others train.
    """

    rates: Rates
    loss: float | None = None
    silent_s: float = 0.0
    has_answered: bool = True
    problem: str = ""
    heard_s: float | None = None
    end: str = ""
    said: Mapping[str, str] | None = None
    quarantined_by: Sequence[str] = ()
    trains: bool = True
    out_of_sync_s: float | None = None
    is_alone: bool = False


def verdicts(conditions: Mapping[str, Condition]) -> dict[str, list[NodeVerdict]]:
    """Return the problems of each node.

    Args:
        conditions: facts about each node, by its name.
    """
    known = {
        name: condition.rates
        for name, condition in conditions.items()
        if condition.rates.seconds >= MIN_WINDOW_S and not condition.silent_s and condition.trains
    }
    found: dict[str, list[NodeVerdict]] = {}
    for name, condition in conditions.items():
        others = [rates for other, rates in known.items() if other != name]
        usual = Rates(
            steps_per_s=_median([rates.steps_per_s for rates in others if rates.steps_per_s]),
            step_train_s=_median([rates.step_train_s for rates in others if rates.step_train_s]),
        )
        found[name] = _of(condition, usual)
    return found


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _of(condition: Condition, usual: Rates) -> list[NodeVerdict]:
    if condition.end:
        text = f"has {condition.end}: {condition.problem}"
        return [NodeVerdict(condition.end, text, "odd")] if condition.problem else []
    if condition.silent_s > 0.0:
        return [_silence(condition)]
    found = []
    if condition.loss is not None and math.isinf(condition.loss):
        found.append(
            NodeVerdict(
                "diverged", "has diverged, because its loss or parameters are not finite", "bad"
            )
        )
    found += _pace(condition.rates, usual) if condition.trains else []
    found += _sync(condition) if condition.trains else []
    if condition.quarantined_by:
        by = listing(condition.quarantined_by, MAX_NAMES)
        text = f"is in quarantine at {by}, because their losses rose sharply after merges with it"
        found.append(NodeVerdict("quarantined", text, "bad"))
    refused = {n: h for n, h in (condition.said or {}).items() if h in _NOT_MERGED}
    if refused:
        words = IN_WORDS[Health(next(iter(refused.values())))]
        by = listing(list(refused), MAX_NAMES)
        reason = f"it {words.removesuffix(' and is not merged')}"
        found.append(NodeVerdict("refused", f"is not merged by {by}, because {reason}", "bad"))
    return found


_NOT_MERGED = {h.value for h in (*REFUSED, Health.MISBEHAVING, Health.DIVERGED)}
LOST = {
    "unreachable": "cannot reach this node",
    "silent": "gets no answer from this node in time",
    "suspect": "suspects that this node is dead",
    "dead": "considers this node dead",
}


def _silence(condition: Condition) -> NodeVerdict:
    """Return `gone`, or `no answer` if the node answers its peers, but not this machine."""
    heard_s, why = condition.heard_s, f": {condition.problem}" if condition.problem else ""
    said = condition.said or {}
    lost = [f"{other} {LOST[health]}" for other, health in said.items() if health in LOST]
    is_lost_to_all = bool(lost) and len(lost) == len(said)
    is_heard = heard_s is not None and heard_s <= HEARD_S and not is_lost_to_all
    if not condition.has_answered and is_heard:
        text = f"does not answer this machine{why}. A peer heard from this node {heard_s:.0f} s ago"
        return NodeVerdict("no answer", text, "odd")
    if condition.has_answered:
        text = f"has not answered for {condition.silent_s:.0f} s"
    elif heard_s is not None:
        text = f"cannot be reached{why}. A peer heard from this node {heard_s:.0f} s ago"
    else:
        text = f"cannot be reached{why}"
    return NodeVerdict("gone", ". ".join([text, *lost[:2]]), "bad")


def _pace(rates: Rates, usual: Rates) -> list[NodeVerdict]:
    """Return the problem of a node that has stalled, or is slow, or waits for much of its time."""
    if rates.steps_per_s is None or rates.seconds < MIN_WINDOW_S:
        return []
    patience_s = max(STALLED_S, STALLED_STEPS / (usual.steps_per_s or STALLED_STEPS))
    if rates.idle_s >= patience_s:
        return [NodeVerdict("stalled", f"has taken no step for {rates.idle_s:.0f} s", "bad")]
    found = []
    if text := _slow(rates, usual):
        found.append(NodeVerdict("slow", text, "odd"))
    if rates.wait is not None and rates.wait > WAITS_MUCH:
        share = f"{100 * rates.wait:.0f} %"
        found.append(NodeVerdict("waiting", f"spends {share} of its time waiting for peers", "odd"))
    return found


def _sync(condition: Condition) -> list[NodeVerdict]:
    if condition.out_of_sync_s is not None:
        text = (
            f"has been out of sync for {condition.out_of_sync_s:.0f} s. It takes its steps with "
            "its own gradients, and merges snapshots of the other nodes"
        )
        return [NodeVerdict("out of sync", text, "odd")]
    text = "trains alone. It averages gradients with no other node, while other nodes train"
    return [NodeVerdict("alone", text, "odd")] if condition.is_alone else []


def _slow(rates: Rates, usual: Rates) -> str:
    """Compare a slow node with the median of the others, in words. Return "" for other nodes.

    If all nodes wait for the slowest node, all take steps at the same rate. Then the training time
    of a step shows the slow node.
    """
    speed, train_s = rates.steps_per_s, rates.step_train_s
    if speed and usual.steps_per_s and speed * SLOW_FACTOR <= usual.steps_per_s:
        text = (
            f"takes {_rate(speed)} steps/s (median of the other nodes: {_rate(usual.steps_per_s)})"
        )
        return f"{text}, which is {usual.steps_per_s / speed:.1f} x slower"
    if train_s and usual.step_train_s and train_s >= SLOW_FACTOR * usual.step_train_s:
        text = (
            f"trains {_ms(train_s)} per step (median of the other nodes: {_ms(usual.step_train_s)})"
        )
        return f"{text}, which is {train_s / usual.step_train_s:.1f} x slower"
    return ""


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
