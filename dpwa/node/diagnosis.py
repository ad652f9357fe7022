"""What is wrong in a cluster, told from what its nodes say of themselves and of each other.

Reports are foreign: nothing in them is sure to be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpwa.node.query import StatusAnswer
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

MOST_SKEW_S = 5.0

_IN_WORDS = {
    "silent": "does not answer {it} in time",
    "unreachable": "cannot be reached by {it}",
    "other_version": "speaks another protocol version than {it}",
    "other_model": "has another model than {it}",
    "other_algorithm": "runs another algorithm than {it}",
    "misbehaving": "breaks the protocol, says {it}",
    "diverged": "has diverged, says {it}",
    "not_mapped": "shares no memory with {it}, which `transport: shm` needs",
    "behind": "is far behind {it}, and is not merged before it has caught up",
}

_REFUSALS = {
    "unknown_key": "{n} connections for their keys: theirs is not allowed here, or they know "
    "another key of this node; compare `dpwa keys list` on both machines",
    "protocol": "{n} connections that came with keys where there are none, without them where they "
    "are asked for, or from something that is no node; compare `security` in all configurations",
    "broken_off": "{n} connections that broke off before they were let in, or took too long",
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        node: that it is about.
        text: what, in one sentence that begins with its name.
        is_unreachable: whether a connection is missing.
    """

    node: str
    text: str
    is_unreachable: bool = False


def diagnose(answers: Mapping[str, StatusAnswer]) -> list[Finding]:
    """Return all that is wrong, each finding once.

    Args:
        answers: of all nodes that should be there, by name.
    """
    reports = {name: a.report for name, a in answers.items() if a.report is not None}
    found = [
        Finding(name, f"{name}: {answer.problem}", is_unreachable=True)
        for name, answer in answers.items()
        if answer.report is None
    ]
    found += _between(reports)
    found += _odd_ones(reports, "protocol version", lambda report: report.get("protocol"))
    found += _odd_ones(reports, "algorithm", lambda report: report.get("algorithm"))
    found += _odd_ones(reports, "model", _model)
    found += _views(reports)
    found += _clocks(answers)
    found += _strangers(reports)
    return list(dict.fromkeys(found))


def _between(reports: Mapping[str, JsonObject]) -> Iterator[Finding]:
    """What nodes say of each other."""
    for name, report in reports.items():
        for peer in _dicts(report.get("peers")):
            other, health = _text(peer.get("name")), peer.get("health")
            if not isinstance(health, str) or health not in _IN_WORDS:
                continue
            where, problem = _text(peer.get("endpoint")), _text(peer.get("problem"))
            text = f"{other} at {where} {_IN_WORDS[health].format(it=name)}"
            text += f": {problem}" if problem else ""
            yield Finding(other, text, is_unreachable=health in ("silent", "unreachable"))


def _odd_ones(reports: Mapping[str, JsonObject], what: str, of: Any) -> Iterator[Finding]:
    """Name those that differ from most others."""
    values = {name: of(report) for name, report in reports.items()}
    known = {name: v for name, v in values.items() if isinstance(v, (str, int))}
    counts = Counter(known.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for name, value in known.items():
        if value != usual:
            shown, other = printable(str(value)), printable(str(usual))
            yield Finding(name, f"{name} has {what} {shown}, most others have {other}")


def _model(report: JsonObject) -> str | None:
    match report.get("model"):
        case {"fingerprint": str(fingerprint), "tensors": int(count)}:
            return f"{fingerprint[:8]} ({count} tensors)"
    return None


def _views(reports: Mapping[str, JsonObject]) -> Iterator[Finding]:
    """Who does not know whom, and who is taken for dead."""
    for name, report in reports.items():
        membership = report.get("membership")
        if not isinstance(membership, dict):
            continue
        states = {_text(e.get("name")): e.get("status") for e in _dicts(membership.get("members"))}
        for other in reports:
            if other == name or states.get(other) == "alive":
                continue
            status = _text(states.get(other) or "unknown")
            yield Finding(other, f"{other} is {status} to {name}, although it answers here")


def _clocks(answers: Mapping[str, StatusAnswer]) -> Iterator[Finding]:
    for name, answer in answers.items():
        ahead_s = answer.ahead_s
        if ahead_s is not None and abs(ahead_s) > MOST_SKEW_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = f"{name}: its clock is {abs(ahead_s):.0f} s {way} this machine's"
            yield Finding(name, text)


def _strangers(reports: Mapping[str, JsonObject]) -> Iterator[Finding]:
    """Who asks in vain to be let in, and what to compare."""
    for name, report in reports.items():
        refused = report.get("handshakes_refused")
        counts = refused if isinstance(refused, dict) else {}
        for reason, what in _REFUSALS.items():
            count = counts.get(reason)
            if isinstance(count, int) and count > 0:
                yield Finding(name, f"{name} has refused {what.format(n=count)}")


def _dicts(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else "?"
