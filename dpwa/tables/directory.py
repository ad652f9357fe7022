"""The plan that all members compute when a view begins: the tables, and their holders.

Every member of a view sends all others the tables that it knows and the copies that it has. A
member that has heard all of them computes the same plan. Of a shard, the copies that count are
those of the latest view in which their holders accepted additions. The former primary, or the next
one in order, is the primary again. A copy with other additions than the primary's (they were never
acknowledged) is made again.

A member that was left out keeps its copies. If the others have no copy of a shard, because one has
died before its shard was copied, such a copy is used, unless additions may have been acknowledged
since its epoch. They were not as long as a holder of the latest epoch was waiting for its copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from dpwa.errors import ProtocolError
from dpwa.tables.rows import ShardPlacement, ShardTransfer, after, copies_to_make, initial
from dpwa.tables.specs import TableSpec, unpack_spec
from dpwa.types import Frame
from dpwa.wire import limits

DIGEST_BYTES = 8


@dataclass(frozen=True)
class HeldShard:
    """A complete copy of a shard."""

    shard: int  # index of the shard
    epoch: int  # when the last view began in which additions were taken
    rank: int  # place of the holder among those that hold the shard; 0: the primary
    digest: bytes  # of the additions that it contains


@dataclass(frozen=True)
class Known:
    """A member's knowledge of a table."""

    spec: TableSpec
    shards: int  # number of shards
    is_ready: bool = False  # its first values are in place
    copies: tuple[HeldShard, ...] = ()  # that the member has
    holders: tuple[tuple[str, ...], ...] = ()  # of each shard, as far as the member knows
    # of each shard, the least epoch of copies with all that was acknowledged, as far as the member
    # knows; empty: it was left out, and does not know
    needed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Told:
    """A member's report at the beginning of a view."""

    tables: Mapping[int, Known]  # by number
    passed: int | None = None  # barriers that it has passed; `None`: it has just come
    is_waiting: bool = False  # in a barrier

    def pack(self) -> bytes:
        tables = [
            [
                number,
                table.spec.pack(),
                table.shards,
                table.is_ready,
                [[held.shard, held.epoch, held.rank, held.digest] for held in table.copies],
                table.holders,
                table.needed,
            ]
            for number, table in self.tables.items()
        ]
        return bytes(msgpack.packb([tables, self.passed, self.is_waiting]))


@dataclass(frozen=True)
class TablePlan:
    """A table in a view."""

    spec: TableSpec
    shards: int
    is_ready: bool
    placement: ShardPlacement  # who holds what
    copies: tuple[ShardTransfer, ...] = ()  # that are to be made first
    # as of `Known`, before the view; empty: this node was left out of it
    needed: tuple[int, ...] = ()
    epoch: int = 0


def digest_of(applied: Mapping[str, tuple[int, int]]) -> bytes:
    """Return a digest of the additions in a copy. See `ReplicatedState.applied`."""
    text = json.dumps(sorted(applied.items()))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def new_plan(spec: TableSpec, shards: int, members: tuple[str, ...], epoch: int = 0) -> TablePlan:
    """Return the plan of a table that is made in a view."""
    placement, needed = initial(members, shards, spec.replicas), (epoch,) * shards
    return TablePlan(spec, shards, False, placement, needed=needed, epoch=epoch)


def plans(
    members: tuple[str, ...], told: Mapping[str, Told], epoch: int = 0
) -> dict[int, TablePlan]:
    """Return the plans of all tables under a new view, the same on all members.

    `members` are names in order of rank, each with a report in `told`.
    """
    numbers = sorted({number for one in told.values() for number in one.tables})
    return {number: _plan(members, told, number, epoch) for number in numbers}


def _plan(members: tuple[str, ...], told: Mapping[str, Told], number: int, epoch: int) -> TablePlan:
    known = {name: told[name].tables[number] for name in members if number in told[name].tables}
    first = next((t for t in known.values() if t.needed), next(iter(known.values())))
    known = {n: t for n, t in known.items() if (t.spec, t.shards) == (first.spec, first.shards)}
    stayed = {name: table for name, table in known.items() if table.needed} or known
    is_ready = any(table.is_ready for table in known.values())
    fresh = initial(members, first.shards, first.spec.replicas)
    needed = tuple(
        min((table.needed[shard] for table in stayed.values() if table.needed), default=0)
        for shard in range(first.shards)
    )
    copies = [
        _survivors(stayed, shard, least) or _survivors(known, shard, least)
        for shard, least in enumerate(needed)
    ]
    # Without any copy, a table that nobody has used yet is as it was made: all zeros. But if nobody
    # is there who was to hold a shard, those may have gone on, and used it.
    before = ShardPlacement(
        tuple(
            names or (() if is_ready or _is_lost(stayed, members, shard) else fresh.holders[shard])
            for shard, names in enumerate(copies)
        )
    )
    # Who has an older copy gets the newer one: until that has come, the older one can stand in.
    held = tuple(
        names and names + tuple(n for n, t in known.items() if n not in names and _holds(t, shard))
        for shard, names in enumerate(before.holders)
    )
    now = after(ShardPlacement(held), members, first.spec.replicas)
    to_make = tuple(copies_to_make(before, now))
    return TablePlan(first.spec, first.shards, is_ready, now, to_make, needed, epoch)


def _survivors(known: Mapping[str, Known], shard: int, least: int) -> tuple[str, ...]:
    found = [
        (held.rank, name, held)
        for name, table in known.items()
        for held in table.copies
        if held.shard == shard and held.epoch >= least
    ]
    epoch = max((held.epoch for _, _, held in found), default=0)
    latest = sorted((one for one in found if one[2].epoch == epoch), key=lambda one: one[:2])
    return tuple(name for _, name, held in latest if held.digest == latest[0][2].digest)


def _is_lost(known: Mapping[str, Known], members: tuple[str, ...], shard: int) -> bool:
    told = [table.holders[shard] for table in known.values() if table.holders]
    return any(not set(holders) & set(members) for holders in told)


def _holds(table: Known, shard: int) -> bool:
    return any(held.shard == shard for held in table.copies)


def unpack_told(data: Frame) -> Told:
    try:
        rows, passed, is_waiting = msgpack.unpackb(data, raw=False)
        if len(rows) > limits.MAX_TABLES or not isinstance(passed, int | None):
            raise ProtocolError("not what a member tells of its tables")
        tables = {int(row[0]): _unpack_known(*row[1:]) for row in rows}
    except (ValueError, TypeError, IndexError, RecursionError, msgpack.UnpackException):
        raise ProtocolError("not what a member tells of its tables") from None
    return Told(tables, passed, bool(is_waiting))


def _unpack_known(
    spec: bytes,
    shards: int,
    is_ready: bool,
    copies: list[list[int]],
    holders: list[list[str]],
    needed: list[int],
) -> Known:
    if not 1 <= shards <= limits.MAX_MEMBERS or len(copies) > shards:
        raise ProtocolError("a table of an impossible number of shards")
    if not {len(holders), len(needed)} <= {0, shards}:
        raise ProtocolError("a table of which not all shards have a place")
    held = tuple(HeldShard(int(s), int(e), int(r), _digest(d)) for s, e, r, d in copies)
    names = tuple(tuple(map(str, row)) for row in holders)
    return Known(unpack_spec(spec), shards, bool(is_ready), held, names, tuple(map(int, needed)))


def _digest(given: object) -> bytes:
    if not isinstance(given, bytes):
        raise ProtocolError("not a digest")
    return given
