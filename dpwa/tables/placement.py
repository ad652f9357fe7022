"""Which member holds which shard of a table: a pure function of the views that members agree on.

Each shard has a primary and some replicas on other members. When the view changes, every member
computes the next placement from the last one, and all come to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpwa.errors import UserError


@dataclass(frozen=True)
class TableShard:
    """Rows `start` (inclusive) to `stop` (exclusive) of a table; may be empty."""

    index: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def cut(rows: int, shards: int) -> tuple[TableShard, ...]:
    """Cut a table into contiguous shards whose sizes differ by at most one row.

    With fewer rows than shards, the last ones are empty.

    Raises:
        UserError: no shards, or a negative number of rows.
    """
    if rows < 0 or shards < 1:
        raise UserError(
            f"a table of {rows} rows in {shards} shards; expected 0 rows or more, 1 shard or more"
        )
    size, larger = divmod(rows, shards)
    starts = [index * size + min(index, larger) for index in range(shards + 1)]
    return tuple(TableShard(index, *starts[index : index + 2]) for index in range(shards))


@dataclass(frozen=True)
class ShardPlacement:
    """Who holds what.

    Attributes:
        holders: for each shard, the names of those that hold it, the primary first; none if all
            copies were lost.
    """

    holders: tuple[tuple[str, ...], ...]

    def primary(self, shard: int) -> str:
        """Return the member that takes the additions to a shard.

        Raises:
            LookupError: no copy of the shard has survived.
        """
        if not self.holders[shard]:
            raise LookupError(f"no copy of shard {shard} has survived")
        return self.holders[shard][0]

    def replicas(self, shard: int) -> tuple[str, ...]:
        """Return the members that the primary of a shard forwards additions to."""
        return self.holders[shard][1:]

    def held_by(self, member: str) -> tuple[int, ...]:
        """Return the shards of which a member has a copy, as primary or as replica."""
        return tuple(i for i, holders in enumerate(self.holders) if member in holders)

    @property
    def lost(self) -> tuple[int, ...]:
        """Shards of which no copy has survived."""
        return tuple(i for i, holders in enumerate(self.holders) if not holders)


class ShardTransfer(NamedTuple):
    """The state of a shard is to be sent from one member to another."""

    shard: int
    source: str
    target: str


def initial(members: Sequence[str], shards: int, replicas: int) -> ShardPlacement:
    """Place new shards: primaries in turn over the members, replicas on those that follow in turn.

    Args:
        members: names of the view, in its order.
        shards: how many.
        replicas: copies of each shard besides the primary, as far as there are members.

    Raises:
        UserError: there are no members.
    """
    if not members:
        raise UserError("a table needs at least one member to hold it")
    copies = 1 + min(replicas, len(members) - 1)
    return ShardPlacement(
        tuple(
            tuple(members[(shard + turn) % len(members)] for turn in range(copies))
            for shard in range(shards)
        )
    )


def after(placement: ShardPlacement, members: Sequence[str], replicas: int) -> ShardPlacement:
    """Return the placement under a new view, equal for all who compute it.

    The copies that survive stay where they are, and the earliest of them is the primary. Missing
    replicas go to the members with the fewest copies, the first in the view among equals. A shard
    of which no copy survives stays without holders: see `ShardPlacement.lost`.

    Args:
        placement: the last one, of copies that are complete (`without` the others).
        members: names of the new view, in its order.
        replicas: as for `initial`.
    """
    present = set(members)
    surviving = [
        [member for member in holders if member in present][: 1 + replicas]
        for holders in placement.holders
    ]
    copies = Counter(member for holders in surviving for member in holders)
    for holders in surviving:
        while holders and len(holders) < min(1 + replicas, len(members)):
            others = (member for member in members if member not in holders)
            chosen = min(others, key=copies.__getitem__)
            copies[chosen] += 1
            holders.append(chosen)
    return ShardPlacement(tuple(tuple(holders) for holders in surviving))


def copies_to_make(before: ShardPlacement, now: ShardPlacement) -> list[ShardTransfer]:
    """Return what has to be sent so that all holders have the state of their shards.

    Args:
        before: the last placement, of copies that are complete.
        now: the one that `after` made of it.
    """
    return [
        ShardTransfer(shard, holders[0], member)
        for shard, holders in enumerate(now.holders)
        for member in holders
        if member not in before.holders[shard]
    ]
