"""What a node says of itself, when it hears what others say of it."""

from __future__ import annotations

from collections.abc import Iterable

from dpwa.policy.members.claims import is_rival
from dpwa.policy.members.states import HIGHEST, HIGHEST_HEARSAY, MemberEntry


def contradiction(own: MemberEntry, news: MemberEntry) -> MemberEntry | None:
    """Return what to say from now on, so that it holds against the news; `None`: it does already.

    Args:
        own: what the node says of itself.
        news: what was said of it.
    """
    is_wild = news.incarnation > max(own.incarnation, HIGHEST_HEARSAY)  # nobody believes it
    if is_wild or news.stamp < own.stamp or news == own:
        return None
    # Another process that began in the same millisecond would contradict versions for ever.
    if news.incarnation > own.incarnation or news.version == HIGHEST or is_rival(news, own):
        return own._replace(incarnation=news.incarnation + 1, version=0)
    return own._replace(version=news.version + 1)


def outlived(own: MemberEntry, news: Iterable[MemberEntry]) -> MemberEntry:
    """Return the node's entry with a higher incarnation than any that is told of its name.

    For a node that has just been let in: its name was free, so these are earlier lives of it, on a
    host whose clock was ahead.
    """
    told = [e.incarnation for e in news if e.name == own.name and e.incarnation < HIGHEST]
    if max(told, default=-1) <= own.incarnation:
        return own
    return own._replace(incarnation=max(told) + 1, version=0)
