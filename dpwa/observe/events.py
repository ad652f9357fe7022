"""Finds the events between two reports of a node, and keeps the newest events of the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dpwa.node.report import NodeReport, PaceReport

MAX_EVENTS = 500

# The meaning of each kind of event. "The node" is the node in `about`.
KINDS = {
    "joined": "there is a connection to the node, or a fetch from the node succeeded",
    "suspect": "the node does not answer the probes of other members",
    "dead": "the node did not refute the suspicion",
    "finished": "the node finished its training, and ended",
    "left": "the node ended without `finish`. With `join`, the node ended in any way",
    "silent": "the node did not answer a fetch in time",
    "unreachable": "there is no connection to the node",
    "refused": "a message or connection was refused. The text gives the reason",
    "quarantined": "a peer's loss rose sharply after several merges with the node. During the "
    "quarantine, the peer does not merge the node",
    "released": "the quarantine of the node ended",
    "diverged": "the node's loss or parameters are not finite",
    "in_sync": "the node averages gradients with the nodes that the text names (`together`)",
    "out_of_sync": "the node steps with its own gradients only, and merges snapshots (`together`)",
    "skipped": "more than a quarter of the node's snapshots were not published, because readers "
    "held every slot",
    "checkpoint": "the node wrote its state to disk",
    "log_failed": "the node could not write its run log",
}


@dataclass(frozen=True)
class RunEvent:
    """An event of a run.

    Attributes:
        time: when the event was noticed, in seconds since the epoch.
        node: the node that noticed the event.
        kind: one of `KINDS`.
        about: the node that the event is about.
        text: details in words. May be empty.
        number: rises by one with each event of a process. 0 if the event has no number yet.
    """

    time: float
    node: str
    kind: str
    about: str
    text: str = ""
    number: int = 0


SKIPPED_SHARE = 0.25  # of the steps. Processes that share cores sometimes skip a few snapshots
FREQUENT = ("checkpoint", "in_sync", "out_of_sync")


def keep_event(events: deque[RunEvent], event: RunEvent) -> None:
    """Append an event. Of each frequent kind, only the newest event about each node is kept."""
    if event.kind in FREQUENT:
        for old in [o for o in events if (o.kind, o.about) == (event.kind, event.about)]:
            events.remove(old)
    events.append(event)


class EventLog:
    """The newest events of one node."""

    def __init__(self) -> None:
        self._events: deque[RunEvent] = deque(maxlen=MAX_EVENTS)
        self._count = 0

    def add_events(self, events: Iterable[RunEvent]) -> list[RunEvent]:
        """Add events, and return them with their numbers."""
        numbered = []
        for event in events:
            self._count += 1
            found = replace(event, number=self._count)
            numbered.append(found)
            keep_event(self._events, found)
        return numbered

    def after(self, number: int, most: int = MAX_EVENTS) -> list[RunEvent]:
        """Return the events after this number, oldest first, at most `most`."""
        return [event for event in tuple(self._events) if event.number > number][:most]


_OF_HEALTH = {  # the kind of event for a change to each health
    "alive": "joined",
    "behind": "joined",
    "finished": "finished",
    "left": "left",
    "silent": "silent",
    "unreachable": "unreachable",
    "diverged": "diverged",
    "other_version": "refused",
    "other_model": "refused",
    "other_settings": "refused",
    "misbehaving": "refused",
    "not_mapped": "refused",
    "mistaken": "refused",
}
_REFUSED = {  # by the keys of a report's `refusals`
    "unknown_key": "connections with unknown keys",
    "protocol": "connections with a different `security`",
    "broken_off": "connections that broke off, or took too long",
    "malformed": "messages that cannot be read",
    "over_budget": "times that requests of peers used up `serving_share`",
    "forged": "messages in the name of another node",
    "revoked": "connections with keys that were removed",
    "clogged": "floods of frames. After a flood, the node opens its port again",
}
_Make = Callable[..., RunEvent]
_OF_STATUS = {"alive": "joined", "suspect": "suspect", "dead": "dead", "left": "left"}


def before_all_came(report: NodeReport) -> NodeReport:
    """Return a report without its present peers, so that `changes` yields `joined` for each one."""
    absent = tuple(peer for peer in report.peers if _OF_HEALTH.get(peer.health) != "joined")
    return replace(report, peers=absent, pace=None)


def changes(before: NodeReport, after: NodeReport, time: float) -> Iterator[RunEvent]:
    """Yield the events between two reports of the same process.

    Args:
        before: the first report.
        after: the later report.
        time: time of the later report, in seconds since the epoch.
    """
    node = after.name

    def event(kind: str, about: str = node, text: str = "") -> RunEvent:
        return RunEvent(time, node, kind, about, text)

    if after.diverged and not before.diverged:
        yield event("diverged", text="the loss or the parameters of this node are not finite")
    if (kind := _sync(after.pace)) and kind != _sync(before.pace):
        others = [] if after.pace is None else [n for n in after.pace.in_sync if n != node]
        yield event(
            kind, text=f"with {', '.join(others)}" if others else "the node continues alone"
        )
    skipped = after.rounds_skipped - before.rounds_skipped
    steps = after.gossip.steps - before.gossip.steps
    if skipped > SKIPPED_SHARE * steps:
        yield event("skipped", text=f"{skipped} of {steps} snapshots were not published")
    known = before.refusals
    for reason, count in after.refusals.items():
        if (more := count - known.get(reason, 0)) > 0:
            yield event("refused", text=f"{more} {_REFUSED.get(reason, reason)}")
    if after.checkpoints.get("written", 0) > before.checkpoints.get("written", 0):
        yield event("checkpoint", text=str(after.checkpoints["newest"]))
    members = _statuses(after)
    yield from _members(_statuses(before), members, event)
    yield from _peers(before, after, members, event)


def _sync(pace: PaceReport | None) -> str:
    """Return `in_sync` or `out_of_sync`, or "" if the node averages no gradients, or is alone."""
    if pace is None or pace.size == 1:
        return ""
    return "out_of_sync" if pace.size == 0 else "in_sync" if pace.size else ""


def _statuses(report: NodeReport) -> dict[str, str]:
    return {m.name: m.status for m in report.members if m.name != report.name}


def _members(was: dict[str, str], now: dict[str, str], event: _Make) -> Iterator[RunEvent]:
    for name, status in now.items():
        is_old = name not in was and status in ("dead", "left")  # before this node started
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
        # The status of a member, and not its health, shows that the member has come or gone.
        if is_new and not (peer.name in members and kind in _OF_STATUS.values()):
            text = peer.problem if kind in ("unreachable", "silent", "left") else ""
            yield event(kind, peer.name, text)
