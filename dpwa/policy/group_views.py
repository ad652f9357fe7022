"""Views: the members of collectives, on which all members have agreed.

The successor of a view is decided by its own members, when a collective ends or fails. No majority
is needed. When the network splits, each part continues with a view of its own, and `has_precedence`
decides which part admits the other once they are connected again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgpack

VIEW_ID_BYTES = 8
UNKNOWN = b""  # the incarnation of a member of the first view, until it is heard of


class Member(NamedTuple):
    """A node, and its incarnation. A restarted node is a different member."""

    name: str
    incarnation: bytes = UNKNOWN  # random bytes, drawn when its process started


@dataclass(frozen=True)
class GroupView:
    """The members from one collective on."""

    members: tuple[Member, ...]  # in order of rank
    since: int = 0  # number of the first collective of this view
    before: bytes = b""  # identity of the view that it comes after; empty if it comes after none

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def identity(self) -> bytes:
        """Digest of `VIEW_ID_BYTES`, equal for nodes that agree on members and all beginnings.

        Two nodes that began alone and admitted each other have two views, with the same members.
        """
        packed = msgpack.packb([self.before, self.since, self.members])
        return hashlib.blake2b(packed, digest_size=VIEW_ID_BYTES).digest()

    def incarnation_of(self, name: str) -> bytes | None:
        """Return the incarnation of a member, or `None` if the node is no member."""
        return self._incarnations.get(name)

    @cached_property
    def _incarnations(self) -> dict[str, bytes]:
        return dict(self.members)

    def after(
        self, number: int, lost: Iterable[str], joiners: Iterable[Member], ranks: Sequence[str]
    ) -> GroupView:
        """Return the view after collective `number`, which is this one if nothing has changed.

        Of several incarnations of a joiner the greatest is admitted (all choose alike). An
        incarnation that is lost now asked before that, and has to ask again. `ranks` are the names
        of all nodes in the order of the configuration.
        """
        gone = set(lost)
        stay = {member.name: member for member in self.members if member.name not in gone}
        others = sorted({*joiners}.difference(self.members))
        fresh = {joiner.name: joiner for joiner in others if joiner.name not in stay}
        if not fresh and len(stay) == len(self.members):
            return self
        order = {name: rank for rank, name in enumerate(ranks)}
        together = {**stay, **fresh}.values()
        members = sorted(together, key=lambda m: (order.get(m.name, len(order)), m.name))
        return GroupView(tuple(members), number + 1, self.identity)


@dataclass(frozen=True)
class ViewRank:
    """The properties of a view that decide which of two views continues."""

    size: int  # how many members it has
    ended: int  # collectives before the one that its members call now, or next
    first: str  # name of its first member


def has_precedence(one: ViewRank, other: ViewRank, ranks: Sequence[str]) -> bool:
    """Return whether the first of two views continues when they meet, which is the larger one.

    If they are equally large, it is the view that has ended more collectives, so that a new node
    joins the nodes at work. Then it is the one whose first member is earlier in the configuration,
    or by name. Powers of two are compared, not single collectives, because the news of two views at
    work is always a little old, so each would be behind the other for good.

    Views of one node never both give up for each other. The announced number of a view is never
    more than its current one, and a view that gives up ends nothing afterwards.
    """
    ended, other_ended = one.ended.bit_length(), other.ended.bit_length()
    if (one.size, ended) != (other.size, other_ended):
        return (one.size, ended) > (other.size, other_ended)
    order = {name: rank for rank, name in enumerate(ranks)}
    place, other_place = (order.get(view.first, len(order)) for view in (one, other))
    return (place, one.first) < (other_place, other.first)
