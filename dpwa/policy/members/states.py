"""The statuses of a member, and one table with the effect of each event on them.

The states are those of SWIM (A. Das, I. Gupta, A. Motivala: Scalable Weakly-consistent
Infection-style Process Group Membership Protocol, 2002), and LEFT. See `policy/members/view.py`.

**Hearsay of a death is only a suspicion.** Every node waits `dead_after_s` itself before it drops
another node. That is no slower, because suspicions spread faster than that. When a partition heals,
the news that one half considers the other dead drops no node, as there is time to refute.

**Signs of life.** A message of a suspect gives it fresh time here. The node still passes on that it
is suspected until it refutes, because otherwise others could never agree. `news(to=...)` begins
with the receiver's own status, so that the receiver refutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

HIGHEST = 2**53 - 1
"""Of incarnations and versions; more is nonsense."""

HIGHEST_HEARSAY = 2**52
"""Of incarnations that are believed without asking the node; far above Unix time in ms."""


class MemberStatus(IntEnum):
    """The status of a node. Of two reports with one version, the greater status holds."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_member(self) -> bool:
        return self <= MemberStatus.SUSPECT


class MemberEntry(NamedTuple):
    """An entry about one node. News of a node is ordered by (incarnation, version, status)."""

    name: str
    endpoint: str  # where peers connect to it
    # when its process began, such as Unix time in ms; a later process has a higher one
    incarnation: int
    version: int = 0  # raised by the node alone, to contradict what is said of it
    status: MemberStatus = MemberStatus.ALIVE

    @property
    def stamp(self) -> tuple[int, int]:
        """Which saying of the node itself this is about."""
        return self.incarnation, self.version

    @property
    def is_sensible(self) -> bool:
        """Tell whether its numbers can be true."""
        return 0 <= self.incarnation <= HIGHEST and 0 <= self.version <= HIGHEST


@dataclass(frozen=True)
class Times:
    """Seconds after which something happens."""

    # of a node that was asked and has not been heard from since, others are asked
    ask_others_after_s: float = 2.0
    suspect_after_s: float = 4.0  # it is suspected
    dead_after_s: float = 3.0  # a suspect that was not heard from, and has not contradicted
    remember_s: float = 3600.0  # a dead node is forgotten
    tombstone_s: float = 7200.0  # it is no longer known who was forgotten
    retry_first_s: float = 1.0  # a dead node is tried again for the first time
    # the longest pause between two trials of one node, if few are remembered
    retry_few_s: float = 2.5
    retry_many_s: float = 30.0  # the same if many are


class Change(NamedTuple):
    """A change of a node's status."""

    entry: MemberEntry  # the last one if it is unknown now
    # `None`: unknown; the same as `after` if only incarnation, endpoint or version changed
    before: MemberStatus | None
    after: MemberStatus | None  # `None` if it is forgotten
    why: str  # for people


class Event(Enum):
    """The events of a node's entry. The values are for logs.

    News is *newer* if its (incarnation, version) is higher than the known one, or the last known
    one of a forgotten node, and the *same* if it is equal. Older news is no event.
    """

    NEWER_ALIVE = "it says that it is alive"
    NEWER_SUSPECT = "it is suspected, by hearsay"
    NEWER_DEAD = "it is dead, by hearsay"
    NEWER_LEFT = "it says that it leaves"
    SAME_ALIVE = "it is alive, by hearsay"
    SAME_SUSPECT = "others suspect it"
    SAME_DEAD = "others take it for dead"
    SAME_LEFT = "it has left"
    SIGN_OF_LIFE = "it was heard from"
    NO_ANSWER = "it does not answer"
    SUSPICION_TIMED_OUT = "it has not contradicted the suspicion"
    TIME_TO_FORGET = "it has been gone for long"


_ALIVE, _SUSPECT, _DEAD, _LEFT = MemberStatus
# unknown: never heard of, or forgotten; if it was said to be gone, there is a tombstone
_NONE = None

# fmt: off
_TABLE: dict[Event, tuple[MemberStatus | None, ...]] = {
    #                           unknown   ALIVE     SUSPECT   DEAD      LEFT
    Event.NEWER_ALIVE:         (_ALIVE,   _ALIVE,   _ALIVE,   _ALIVE,   _ALIVE),
    Event.NEWER_SUSPECT:       (_SUSPECT, _SUSPECT, _SUSPECT, _SUSPECT, _SUSPECT),
    Event.NEWER_DEAD:          (_NONE,    _SUSPECT, _SUSPECT, _DEAD,    _DEAD),
    Event.NEWER_LEFT:          (_NONE,    _LEFT,    _LEFT,    _LEFT,    _LEFT),
    Event.SAME_ALIVE:          (_NONE,    _ALIVE,   _SUSPECT, _DEAD,    _LEFT),
    Event.SAME_SUSPECT:        (_NONE,    _SUSPECT, _SUSPECT, _DEAD,    _LEFT),
    Event.SAME_DEAD:           (_NONE,    _SUSPECT, _SUSPECT, _DEAD,    _LEFT),
    Event.SAME_LEFT:           (_NONE,    _LEFT,    _LEFT,    _LEFT,    _LEFT),
    Event.SIGN_OF_LIFE:        (_NONE,    _ALIVE,   _SUSPECT, _DEAD,    _LEFT),
    Event.NO_ANSWER:           (_NONE,    _SUSPECT, _SUSPECT, _DEAD,    _LEFT),
    Event.SUSPICION_TIMED_OUT: (_NONE,    _ALIVE,   _DEAD,    _DEAD,    _LEFT),
    Event.TIME_TO_FORGET:      (_NONE,    _ALIVE,   _SUSPECT, _NONE,    _NONE),
}
# fmt: on
NEWER = (Event.NEWER_ALIVE, Event.NEWER_SUSPECT, Event.NEWER_DEAD, Event.NEWER_LEFT)
_SAME = (Event.SAME_ALIVE, Event.SAME_SUSPECT, Event.SAME_DEAD, Event.SAME_LEFT)


def news_event(news: MemberEntry, known: MemberEntry | None) -> Event | None:
    """Return the event of news, given the known or last entry, or `None` if the news is older."""
    if known is None or news.stamp > known.stamp:
        return NEWER[news.status]
    return _SAME[news.status] if news.stamp == known.stamp else None


def after(event: Event, status: MemberStatus | None) -> MemberStatus | None:
    """Return the status after an event. `None` is unknown."""
    return _TABLE[event][0 if status is None else status + 1]
