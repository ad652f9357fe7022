"""Events: what happened to a node, and what it noticed of others, as a bounded list."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MOST_EVENTS = 500

# Every kind of event, and what it means; `about` is the node that it happened to.
KINDS = {
    "joined": "it is there: a connection was made, or a fetch has succeeded",
    "suspect": "it does not answer the members that probe it",
    "dead": "it has not contradicted the suspicion",
    "left": "it has said goodbye",
    "silent": "it does not answer a fetch in time",
    "unreachable": "there is no connection to it",
    "refused": "something was refused: the reason stands in the text",
    "quarantined": "the loss has jumped after merging it several times; it is left alone for now",
    "released": "it is in quarantine no more",
    "diverged": "its loss or its parameters are no finite numbers",
    "skipped": "a snapshot was not published, as slow readers held every slot",
    "checkpoint": "its state was written to disk",
    "log_failed": "its run log could not be written",
}


@dataclass(frozen=True)
class RunEvent:
    """Something that happened.

    Attributes:
        time: when it was noticed, in seconds since the epoch.
        node: who noticed it.
        kind: one of `KINDS`.
        about: the node that it happened to.
        text: more of it, in words; may be empty.
        number: rises by one with each event of a process; 0 where it has none yet.
    """

    time: float
    node: str
    kind: str
    about: str
    text: str = ""
    number: int = 0


def keep(events: deque[RunEvent], event: RunEvent) -> None:
    """Add an event; of checkpoints, which would drown all others, the newest of each node stays."""
    if event.kind == "checkpoint":
        for old in [o for o in events if (o.kind, o.about) == (event.kind, event.about)]:
            events.remove(old)
    events.append(event)


class EventLog:
    """The newest events of one node."""

    def __init__(self) -> None:
        self._events: deque[RunEvent] = deque(maxlen=MOST_EVENTS)
        self._count = 0

    def add(self, events: Iterable[RunEvent]) -> list[RunEvent]:
        """Take in events; return them with their numbers."""
        numbered = []
        for event in events:
            self._count += 1
            found = RunEvent(
                event.time, event.node, event.kind, event.about, event.text, self._count
            )
            numbered.append(found)
            keep(self._events, found)
        return numbered

    def after(self, number: int, most: int = MOST_EVENTS) -> list[RunEvent]:
        """Return the events after this number, oldest first, and at most so many."""
        return [event for event in tuple(self._events) if event.number > number][:most]
