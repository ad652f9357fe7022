"""What has happened between two reports of a node: pure, so that tests need no node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dpwa.observe.events import RunEvent
from dpwa.observe.figures import refusals
from dpwa.types import JsonObject

_OF_HEALTH = {
    "alive": "joined",
    "behind": "joined",
    "gone": "left",
    "silent": "silent",
    "unreachable": "unreachable",
    "diverged": "diverged",
    "other_version": "refused",
    "other_model": "refused",
    "other_algorithm": "refused",
    "misbehaving": "refused",
    "not_mapped": "refused",
}
_Make = Callable[..., RunEvent]
_OF_STATUS = {"alive": "joined", "suspect": "suspect", "dead": "dead", "left": "left"}


def changes(before: JsonObject, after: JsonObject, time: float) -> Iterator[RunEvent]:
    """Return what has happened from one report of a node to a later one of the same process.

    Args:
        before: what `Node.report` returned in this process.
        after: what it returned later.
        time: of the later one, in seconds since the epoch.
    """
    node = after["name"]

    def event(kind: str, about: str = node, text: str = "") -> RunEvent:
        return RunEvent(time, node, kind, about, text)

    if after["diverged"] and not before["diverged"]:
        yield event("diverged", text="its loss or parameters are not finite")
    skipped = after["rounds_skipped"] - before["rounds_skipped"]
    if skipped > 0:
        yield event("skipped", text=f"{skipped} snapshots were not published")
    known = refusals(before)
    for reason, count in refusals(after).items():
        if (more := count - known.get(reason, 0)) > 0:
            yield event("refused", text=f"{reason}: {more}")
    yield from _checkpoints(before, after, event)
    members = _statuses(after)
    yield from _members(_statuses(before), members, event)
    yield from _peers(before, after, members, event)


def _checkpoints(before: JsonObject, after: JsonObject, event: _Make) -> Iterator[RunEvent]:
    was, now = (_writer(report) for report in (before, after))
    if now.get("written", 0) > was.get("written", 0):
        yield event("checkpoint", text=str(now["newest"]))


def _writer(report: JsonObject) -> JsonObject:
    state: JsonObject = report.get("state") or {}
    return state.get("checkpoints") or {}


def _statuses(report: JsonObject) -> dict[str, str]:
    membership: JsonObject = report.get("membership") or {}
    entries = membership.get("members", [])
    return {e["name"]: e["status"] for e in entries if e["name"] != report["name"]}


def _members(was: dict[str, str], now: dict[str, str], event: _Make) -> Iterator[RunEvent]:
    for name, status in now.items():
        is_old = name not in was and status in ("dead", "left")  # it was so before this node came
        if status in _OF_STATUS and was.get(name) != status and not is_old:
            yield event(_OF_STATUS[status], name)


def _peers(
    before: JsonObject, after: JsonObject, members: dict[str, str], event: _Make
) -> Iterator[RunEvent]:
    known = {peer["name"]: peer for peer in before["peers"]}
    for peer in after["peers"]:
        name, was = peer["name"], known.get(peer["name"])
        if was is not None and peer["quarantined"] != was["quarantined"]:
            yield event("quarantined" if peer["quarantined"] else "released", name)
        kind = _OF_HEALTH.get(peer["health"])
        is_new = kind is not None and (was is None or _OF_HEALTH.get(was["health"]) != kind)
        # Where there are members, they tell who has come and gone.
        if is_new and not (name in members and kind in _OF_STATUS.values()):
            yield event(kind, name, peer["problem"] if kind in ("unreachable", "silent") else "")
