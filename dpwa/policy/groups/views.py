"""Views: who takes part in collectives, as all who take part have agreed.

A view lasts from one collective to a later one; its successor is decided by its own members, either
when a collective ends or when it fails. Nobody counts votes against a majority: when the network
splits, each part goes on with a view of its own, and `has_precedence` says which part takes
up the other once they hear of each other again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgpack

VIEW_ID_BYTES = 8
UNKNOWN = b""  # the incarnation of a member of the first view, until it is heard of


@dataclass(frozen=True, order=True)
class Member:
    """A node, and which of its lives: a restarted one is somebody else.

    Attributes:
        name: of the node.
        incarnation: random bytes, drawn when its process started.
    """

    name: str
    incarnation: bytes = UNKNOWN


@dataclass(frozen=True)
class GroupView:
    """Who takes part from one collective on.

    Attributes:
        members: in order of rank.
        since: number of the first collective of this view.
    """

    members: tuple[Member, ...]
    since: int = 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the members, in order of rank."""
        return tuple(member.name for member in self.members)

    @cached_property
    def identity(self) -> bytes:
        """Digest, `VIEW_ID_BYTES` long: equal for those who agree on members and beginning."""
        rows = [[member.name, member.incarnation] for member in self.members]
        packed = msgpack.packb([self.since, rows])
        return hashlib.blake2b(packed, digest_size=VIEW_ID_BYTES).digest()

    def incarnation_of(self, name: str) -> bytes | None:
        """Return which life of a node is meant; `None` if it is no member."""
        return next((m.incarnation for m in self.members if m.name == name), None)

    def after(
        self, number: int, lost: Iterable[str], joiners: Iterable[Member], ranks: Sequence[str]
    ) -> GroupView:
        """Return the view after a collective; this one if nothing has changed.

        Args:
            number: of the collective.
            lost: names of members that are gone.
            joiners: who is let in; of several lives of a node, the greatest (all choose alike).
            ranks: names of all nodes in the order of the configuration.
        """
        gone = set(lost)
        stay = {member.name: member for member in self.members if member.name not in gone}
        fresh = {joiner.name: joiner for joiner in sorted(joiners) if joiner.name not in stay}
        if not fresh and len(stay) == len(self.members):
            return self
        order = {name: rank for rank, name in enumerate(ranks)}
        together = {**stay, **fresh}.values()
        members = sorted(together, key=lambda m: (order.get(m.name, len(order)), m.name))
        return GroupView(tuple(members), number + 1)


@dataclass(frozen=True)
class ViewRank:
    """What counts of a view when it meets another.

    Attributes:
        size: how many members it has.
        ended: how many collectives have come before the one that its members call now, or next.
        first: name of its first member.
    """

    size: int
    ended: int
    first: str


def has_precedence(one: ViewRank, other: ViewRank, ranks: Sequence[str]) -> bool:
    """Tell whether the first of two views goes on when they meet: the larger one.

    Of equally large ones it is that which has ended more collectives, so that a newcomer comes to
    those who are at work; then that whose first member stands earlier in the configuration, or by
    name.

    Views of one never give themselves up for each other. What was heard of a view is never more
    than it has ended by now, and whoever gives itself up ends nothing afterwards: if it was junior
    to what it had heard, then whatever the other has heard of it is junior to the other.
    """
    if (one.size, one.ended) != (other.size, other.ended):
        return (one.size, one.ended) > (other.size, other.ended)
    order = {name: rank for rank, name in enumerate(ranks)}
    place, other_place = (order.get(view.first, len(order)) for view in (one, other))
    return (place, one.first) < (other_place, other.first)
