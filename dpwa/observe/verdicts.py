"""Verdicts on slow, gone and sick nodes, with the reasons in words, as pure rules."""

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
MIN_WINDOW_S = 3.0  # before anybody is called slow
WAITS_MUCH = 0.5  # share of the time
HEARD_S = 5.0  # since when a node that others have heard of is taken to be there
STALLED_STEPS = 10.0  # times the usual step, and at least
STALLED_S = 10.0
MAX_NAMES = 3

Severity = Literal["bad", "odd"]


@dataclass(frozen=True)
class NodeVerdict:
    """A problem of a node.

    Attributes:
        kind: `gone`, `no answer` (it does not answer here, but others hear of it), `left`,
            `finished` (and with a problem), `diverged`, `stalled`, `slow`, `waiting`, `out of
            sync`, `alone`, `quarantined` or `refused`.
        text: the reason, in words that follow the name of the node.
        severity: `bad` if it no longer takes part, or harms others, `odd` if it is still there.
    """

    kind: str
    text: str
    severity: Severity


@dataclass(frozen=True)
class Condition:
    """The knowledge of a node that is used to judge it.

    Attributes:
        rates: over the last seconds.
        loss: its newest loss. Infinite once it has diverged.
        silent_s: since it last answered, or 0 if it answers. In a log: since its last line.
        has_answered: whether it ever has. If not, `silent_s` counts from the first question.
        problem: why it does not answer, in words, if that is known.
        heard_s: since a different node has last heard of it, if any reports this.
        end: `finished`, `left` (it has ended without finishing), or empty. After its end, `problem`
            is its problem then.
        said: reports of others about it, by their names: its health or status.
        quarantined_by: names of the nodes that have it in quarantine.
        trains: whether it has not taken its last step, as far as is known.
        out_of_sync_s: seconds since it has no part in rounds of `together`. `None`: it is in sync,
            or averages no gradients.
        is_alone: whether it averages gradients with no other node, while others do so.
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
        conditions: of all nodes, by name.
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
            NodeVerdict("diverged", "has diverged: its loss or parameters are not finite", "bad")
        )
    found += _pace(condition.rates, usual) if condition.trains else []
    found += _sync(condition) if condition.trains else []
    if condition.quarantined_by:
        by = listing(condition.quarantined_by, MAX_NAMES)
        text = f"is in quarantine at {by}: their losses jumped after merging it"
        found.append(NodeVerdict("quarantined", text, "bad"))
    refused = {n: h for n, h in (condition.said or {}).items() if h in _NOT_MERGED}
    if refused:
        words = IN_WORDS[Health(next(iter(refused.values())))]
        by = listing(list(refused), MAX_NAMES)
        reason = f"it {words.removesuffix(' and is not merged')}"
        found.append(NodeVerdict("refused", f"is not merged by {by}: {reason}", "bad"))
    return found


_NOT_MERGED = {h.value for h in (*REFUSED, Health.MISBEHAVING, Health.DIVERGED)}
LOST = {
    "unreachable": "cannot reach it",
    "silent": "gets no answer in time",
    "suspect": "suspects it",
    "dead": "says that it is dead",
}


def _silence(condition: Condition) -> NodeVerdict:
    """Distinguish a node that is gone from one that does not answer here, but elsewhere."""
    heard_s, why = condition.heard_s, f": {condition.problem}" if condition.problem else ""
    said = condition.said or {}
    lost = [f"{other} {LOST[health]}" for other, health in said.items() if health in LOST]
    is_lost_to_all = bool(lost) and len(lost) == len(said)
    is_heard = heard_s is not None and heard_s <= HEARD_S and not is_lost_to_all
    if not condition.has_answered and is_heard:
        text = f"does not answer here{why}; others heard of it {heard_s:.0f} s ago"
        return NodeVerdict("no answer", text, "odd")
    if condition.has_answered:
        text = f"has not answered for {condition.silent_s:.0f} s"
    elif heard_s is not None:
        text = f"cannot be reached{why}; others heard of it {heard_s:.0f} s ago"
    else:
        text = f"cannot be reached{why}"
    return NodeVerdict("gone", "; ".join([text, *lost[:2]]), "bad")


def _pace(rates: Rates, usual: Rates) -> list[NodeVerdict]:
    """Return whether a node is slower than others, stands still, or waits."""
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
            f"has been out of sync for {condition.out_of_sync_s:.0f} s: it takes its steps with "
            "its own gradients, and merges snapshots of the others"
        )
        return [NodeVerdict("out of sync", text, "odd")]
    text = "averages gradients with no other node, while others train: it trains alone"
    return [NodeVerdict("alone", text, "odd")] if condition.is_alone else []


def _slow(rates: Rates, usual: Rates) -> str:
    """Describe by how much a node is slower than the others, or return "" if it is not.

    If all wait for the slowest, all take equally many steps. Then the time of training shows it.
    """
    speed, train_s = rates.steps_per_s, rates.step_train_s
    if speed and usual.steps_per_s and speed * SLOW_FACTOR <= usual.steps_per_s:
        text = f"takes {_rate(speed)} steps/s, the others {_rate(usual.steps_per_s)} (median)"
        return f"{text}: {usual.steps_per_s / speed:.1f} x slower"
    if train_s and usual.step_train_s and train_s >= SLOW_FACTOR * usual.step_train_s:
        text = f"trains {_ms(train_s)} in a step, the others {_ms(usual.step_train_s)} (median)"
        return f"{text}: {train_s / usual.step_train_s:.1f} x slower"
    return ""


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
