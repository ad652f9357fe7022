"""Views: who takes part in collectives, as all who take part have agreed.

The successor of a view is decided by its own members, when a collective ends or fails. No majority
is needed: when the network splits, each part goes on with a view of its own, and `has_precedence`
says which part takes up the other once they hear of each other again.
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
    """A node, and which of its lives: a restarted one is somebody else."""

    name: str
    incarnation: bytes = UNKNOWN  # random bytes, drawn when its process started


@dataclass(frozen=True)
class GroupView:
    """Who takes part from one collective on."""

    members: tuple[Member, ...]  # in order of rank
    since: int = 0  # number of the first collective of this view
    before: bytes = b""  # identity of the view that it comes after; empty if it comes after none

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def identity(self) -> bytes:
        """Digest, `VIEW_ID_BYTES` long: equal for those who agree on members and all beginnings.

        Two nodes that began alone and let in each other are of two views, with the same members.
        """
        rows = [[member.name, member.incarnation] for member in self.members]
        packed = msgpack.packb([self.before, self.since, rows])
        return hashlib.blake2b(packed, digest_size=VIEW_ID_BYTES).digest()

    def incarnation_of(self, name: str) -> bytes | None:
        """Return which life of a node is meant; `None` if it is no member."""
        return self._incarnations.get(name)

    @cached_property
    def _incarnations(self) -> dict[str, bytes]:
        return {member.name: member.incarnation for member in self.members}

    def after(
        self, number: int, lost: Iterable[str], joiners: Iterable[Member], ranks: Sequence[str]
    ) -> GroupView:
        """Return the view after collective `number`; this one if nothing has changed.

        Of several lives of a joiner the greatest is let in (all choose alike). A life that is lost
        now has asked before that, and has to ask again. `ranks` are the names of all nodes in the
        order of the configuration.
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
    """What counts of a view when it meets another."""

    size: int  # how many members it has
    ended: int  # collectives before the one that its members call now, or next
    first: str  # name of its first member


def has_precedence(one: ViewRank, other: ViewRank, ranks: Sequence[str]) -> bool:
    """Tell whether the first of two views goes on when they meet: the larger one.

    Of equally large ones it is that which has ended more collectives, so that a newcomer comes to
    those who are at work; then that whose first member stands earlier in the configuration, or by
    name. Powers of two are compared, not single collectives: what two views at work hear of each
    other is always a little old, so each would be ahead of the other for good.

    Views of one never give themselves up for each other: what was heard of a view is never more
    than it has ended by now, and whoever gives itself up ends nothing afterwards.
    """
    ended, other_ended = one.ended.bit_length(), other.ended.bit_length()
    if (one.size, ended) != (other.size, other_ended):
        return (one.size, ended) > (other.size, other_ended)
    order = {name: rank for rank, name in enumerate(ranks)}
    place, other_place = (order.get(view.first, len(order)) for view in (one, other))
    return (place, one.first) < (other_place, other.first)
