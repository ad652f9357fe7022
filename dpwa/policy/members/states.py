"""The statuses of a member, and one table with the effect of each event on a status.

The statuses are those of SWIM (A. Das, I. Gupta, A. Motivala: Scalable Weakly-consistent
Infection-style Process Group Membership Protocol, 2002), and LEFT. See `policy/members/view.py`.

**Hearsay of a death counts only as a suspicion.** Every node waits `dead_after_s` itself before it
drops another node. This costs no time, because suspicions spread faster. When a partition heals,
each half reports nodes of the other half as dead, but no node is dropped, because it can refute.

**Signs of life.** If a suspected member sends a message to this node, the suspect gets fresh time.
This node still forwards the suspicion until the suspect refutes it, because otherwise the nodes
could never agree. A message to a suspect begins with the suspect's own status, so that the suspect
refutes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

HIGHEST = 2**53 - 1
"""The maximum incarnation and version. Higher numbers are invalid."""

HIGHEST_HEARSAY = 2**52
"""The maximum incarnation that is believed without asking the node, far above Unix time in ms."""


class MemberStatus(IntEnum):
    """The status of a node. Of two reports of the same version, the greater status counts."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_member(self) -> bool:
        return self <= MemberStatus.SUSPECT


class MemberEntry(NamedTuple):
    """A node's entry in the member list. Entries are ordered by (incarnation, version, status)."""

    name: str
    endpoint: str  # the endpoint to which peers connect
    # start time of its process, such as Unix time in ms; a later process has a higher number
    incarnation: int
    version: int = 0  # only the node itself raises it, to refute reports
    status: MemberStatus = MemberStatus.ALIVE

    @property
    def stamp(self) -> tuple[int, int]:
        """The pair (incarnation, version), which only the node itself can raise."""
        return self.incarnation, self.version

    @property
    def is_sensible(self) -> bool:
        """Whether incarnation and version are in the valid range."""
        return 0 <= self.incarnation <= HIGHEST and 0 <= self.version <= HIGHEST


@dataclass(frozen=True)
class Times:
    """Time limits for members and for dead nodes, in seconds."""

    # after a question to a node without a sign of life, other nodes are asked
    ask_others_after_s: float = 2.0
    suspect_after_s: float = 4.0  # after such a question, the node is suspected
    dead_after_s: float = 3.0  # a suspect that is silent, and has not refuted, is dead
    remember_s: float = 3600.0  # a dead node is forgotten
    tombstone_s: float = 7200.0  # the last entry of a forgotten node is dropped
    retry_first_s: float = 1.0  # a dead node is tried again for the first time
    # the maximum pause between two attempts to reach a dead node, if there are few dead nodes
    retry_few_s: float = 2.5
    retry_many_s: float = 30.0  # the same pause, if there are many


class Change(NamedTuple):
    """A change of a node's status."""

    entry: MemberEntry  # the new entry, or the last one of a node that is now unknown
    # `None`: unknown; equal to `after` if only incarnation, endpoint or version changed
    before: MemberStatus | None
    after: MemberStatus | None  # `None` if the node is forgotten
    why: str  # the reason, for people


class Event(Enum):
    """Events that can change a node's status. The values are texts for logs.

    News is *newer* if its (incarnation, version) is higher than that of the known entry, or of the
    last entry of a forgotten node. News is the *same* if both are equal. Older news is no event.
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
# unknown: never heard of, or forgotten; for a node that was reported gone, the last entry is kept
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
    """Return the event that received `news` causes, or `None` if the known entry is newer."""
    if known is None or news.stamp > known.stamp:
        return NEWER[news.status]
    return _SAME[news.status] if news.stamp == known.stamp else None


def after(event: Event, status: MemberStatus | None) -> MemberStatus | None:
    """Return a node's status after an event. The status `None` means an unknown node."""
    return _TABLE[event][0 if status is None else status + 1]
