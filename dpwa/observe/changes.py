"""What has happened between two reports of a node: pure, so that tests need no node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dpwa.node.report import NodeReport
from dpwa.observe.events import RunEvent

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


def changes(before: NodeReport, after: NodeReport, time: float) -> Iterator[RunEvent]:
    """Return what has happened from one report of a node to a later one of the same process.

    Args:
        before: how it was.
        after: how it was later.
        time: of the later one, in seconds since the epoch.
    """
    node = after.name

    def event(kind: str, about: str = node, text: str = "") -> RunEvent:
        return RunEvent(time, node, kind, about, text)

    if after.diverged and not before.diverged:
        yield event("diverged", text="its loss or parameters are not finite")
    skipped = after.rounds_skipped - before.rounds_skipped
    if skipped > 0:
        yield event("skipped", text=f"{skipped} snapshots were not published")
    known = before.refusals
    for reason, count in after.refusals.items():
        if (more := count - known.get(reason, 0)) > 0:
            yield event("refused", text=f"{reason}: {more}")
    if after.checkpoints.get("written", 0) > before.checkpoints.get("written", 0):
        yield event("checkpoint", text=str(after.checkpoints["newest"]))
    members = _statuses(after)
    yield from _members(_statuses(before), members, event)
    yield from _peers(before, after, members, event)


def _statuses(report: NodeReport) -> dict[str, str]:
    return {m.name: m.status for m in report.members if m.name != report.name}


def _members(was: dict[str, str], now: dict[str, str], event: _Make) -> Iterator[RunEvent]:
    for name, status in now.items():
        is_old = name not in was and status in ("dead", "left")  # it was so before this node came
        if status in _OF_STATUS and was.get(name) != status and not is_old:
            yield event(_OF_STATUS[status], name)


def _peers(
    before: NodeReport, after: NodeReport, members: dict[str, str], event: _Make
) -> Iterator[RunEvent]:
    known = {peer.name: peer for peer in before.peers}
    for peer in after.peers:
        was = known.get(peer.name)
        if was is not None and peer.quarantined != was.quarantined:
            yield event("quarantined" if peer.quarantined else "released", peer.name)
        kind = _OF_HEALTH.get(peer.health)
        is_new = kind is not None and (was is None or _OF_HEALTH.get(was.health) != kind)
        # Where there are members, they tell who has come and gone.
        if is_new and not (peer.name in members and kind in _OF_STATUS.values()):
            text = peer.problem if kind in ("unreachable", "silent") else ""
            yield event(kind, peer.name, text)
