"""Claims: hearsay that a member is another process than the one known, or somewhere else.

Anybody can say so of anybody. So it is believed only once the process that is meant has been called
where it is said to be, and has answered by that name and number. One claim of each name is looked
into at a time, for `CHECK_WITHIN_S` at the most, and then no other for `PAUSE_S`; and of all names
a few at a time. A claim that is dropped will be heard again if it is true.

Keys keep liars out, a view does not; but what a lie can do is bounded. Suspicions, deaths and
departures are contradicted by the node itself. Invented nodes do not answer, so they are gone
within seconds, and never more than `most` are kept; when all places are taken, whoever else is
heard of is called, and one that answers takes the place of one that never has. Only a later process
that answers takes this node's own name (`replaced_by`), and its owner does not fight over it; if
none does, a higher incarnation contradicts. There is always room for that: an incarnation above
`HIGHEST_HEARSAY` is a claim whoever it is about, so hearsay lifts nobody further, and beyond that a
node climbs by one for each contradiction.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dpwa.policy.members.states import HIGHEST, HIGHEST_HEARSAY, MemberEntry

CHECK_WITHIN_S = 5.0
PAUSE_S = 1.0
MOST_AT_ONCE = 8  # that are looked into
MOST_CLAIMS = 256


def is_claim(news: MemberEntry, known: MemberEntry | None) -> bool:
    """Tell whether news has to be checked, given what is known of the node."""
    if known is not None and (news.stamp <= known.stamp or _is_same_process(news, known)):
        return False
    is_member = known is not None and known.status.is_member
    return is_member or news.incarnation > HIGHEST_HEARSAY


def is_rival(news: MemberEntry, own: MemberEntry) -> bool:
    """Tell whether news is of a later process, elsewhere, with the name of this node."""
    is_later = news.stamp > own.stamp and news.status.is_member
    return is_later and news.endpoint != own.endpoint


def _is_same_process(one: MemberEntry, other: MemberEntry) -> bool:
    return (one.incarnation, one.endpoint) == (other.incarnation, other.endpoint)


@dataclass
class _Claim:
    entry: MemberEntry
    until: float
    is_asked: bool = False


class Claims:
    """The claims that are being looked into, at most one of each name."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def put(self, entry: MemberEntry, now: float) -> None:
        """Look into a claim, unless one of this name is in the way; of too many the first is
        dropped.
        """
        other = self._claims.get(entry.name)
        if other is not None and now < other.until:
            return
        if other is None and len(self._claims) >= MOST_CLAIMS:
            waiting = next((name for name, c in self._claims.items() if not c.is_asked), None)
            if waiting is None:
                return
            del self._claims[waiting]
        self._claims[entry.name] = _Claim(entry, now + CHECK_WITHIN_S)

    def to_check(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Return who is to be called now, each once; of many, some that are drawn at random."""
        self._claims = {name: claim for name, claim in self._claims.items() if now < claim.until}
        asked = sum(claim.is_asked for claim in self._claims.values())
        waiting = [claim for claim in self._claims.values() if not claim.is_asked]
        room = max(0, MOST_AT_ONCE - asked)
        fresh = waiting if len(waiting) <= room else rng.sample(waiting, room)
        for claim in fresh:
            claim.is_asked = True
        return [claim.entry for claim in fresh]

    def settle(self, name: str, now: float) -> None:
        claim = self._claims.get(name)
        if claim is not None:
            claim.until, claim.is_asked = now + PAUSE_S, True

    def drop(self, name: str) -> None:
        self._claims.pop(name, None)


def contradiction(own: MemberEntry, news: MemberEntry) -> MemberEntry | None:
    """Return what a node has to say so that it holds against the news; `None`: it does already."""
    is_wild = news.incarnation > max(own.incarnation, HIGHEST_HEARSAY)  # nobody believes it
    if is_wild or news.stamp < own.stamp or news == own:
        return None
    # Another process that began in the same millisecond would contradict versions for ever.
    if news.incarnation > own.incarnation or news.version == HIGHEST or is_rival(news, own):
        return own._replace(incarnation=news.incarnation + 1, version=0)
    return own._replace(version=news.version + 1)


def outlived(own: MemberEntry, news: Iterable[MemberEntry]) -> MemberEntry:
    """Return the entry of a node just let in, newer than what is told of
    earlier lives of its name.
    """
    told = [e.incarnation for e in news if e.name == own.name and e.incarnation < HIGHEST]
    if max(told, default=-1) <= own.incarnation:
        return own
    return own._replace(incarnation=max(told) + 1, version=0)
