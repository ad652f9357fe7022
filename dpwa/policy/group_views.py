"""Views: lists of the members of collectives. All members agree on the list.

When a collective ends or fails, the members of a view decide on the next view. No majority is
needed. If the network splits, each part continues with its own view. When the parts are connected
again, `has_precedence` decides which part admits the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgpack

VIEW_ID_BYTES = 8
UNKNOWN = b""  # the incarnation of a member of the first view, until this node knows it


class Member(NamedTuple):
    """One process of a node: name and incarnation. A restarted node is a different member."""

    name: str
    incarnation: bytes = UNKNOWN  # random bytes, chosen when its process started


@dataclass(frozen=True)
class GroupView:
    """The members of a group, from the collective `since` until the members change."""

    members: tuple[Member, ...]  # in order of rank
    since: int = 0  # number of the first collective of this view
    before: bytes = b""  # identity of the view before; empty if there is none

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def identity(self) -> bytes:
        """Digest of the members, `since` and all earlier views, `VIEW_ID_BYTES` long.

        If two nodes start alone and admit each other, both views have the same members, but differ.
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
        """Return the view that follows collective `number`, or this view if no member has changed.

        Of several incarnations of a joiner, the greatest is admitted, so that all nodes choose
        alike. If a lost node had asked to join before, it has to ask again. `ranks` are the names
        of all nodes, in the order of the configuration.
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
    """Precedence of a view when it meets a different view, e.g. after a network split."""

    size: int  # number of members
    ended: int  # number of collectives before the current or next one
    first: str  # name of its first member


def has_precedence(one: ViewRank, other: ViewRank, ranks: Sequence[str]) -> bool:
    """Return whether the members of `one` admit those of `other`. The larger view has precedence.

    If the views are equally large, the view that has ended more collectives continues, so that a
    new node joins the nodes that train. If these numbers are equal, too, the view continues whose
    first member is earlier in the configuration, or by name. Numbers count as equal if they have
    equally many bits. Exact numbers of the other view are always old, so each view would seem to be
    ahead.

    If two views of one node each meet, they never both give up. The announced number of a view is
    never more than its current number, and a view that gives up ends no collective afterwards.
    """
    ended, other_ended = one.ended.bit_length(), other.ended.bit_length()
    if (one.size, ended) != (other.size, other_ended):
        return (one.size, ended) > (other.size, other_ended)
    order = {name: rank for rank, name in enumerate(ranks)}
    place, other_place = (order.get(view.first, len(order)) for view in (one, other))
    return (place, one.first) < (other_place, other.first)
