"""Compute which members hold the shards of the tables in a new membership view.

Every member of a view sends a report to all other members, with its tables and its copies of
shards. All members compute the same plan from these reports. Of each shard, the valid copies are
those of the latest view in which their holders accepted additions. The former primary, or the next
holder in order, becomes the primary. A copy whose additions differ from the primary's is made
again, because these additions were never acknowledged. A member that was excluded keeps its copies.
The other members may have no copy of a shard, if a holder died before its shard was copied. Then
the excluded member's copy is used, unless additions may have been acknowledged since the copy's
epoch. No addition was acknowledged as long as a holder of the latest epoch waited for its copy.
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
    """The description of a complete copy of a shard, in a member's report."""

    shard: int  # the index of the shard
    epoch: int  # the start of the last view in which the copy got additions
    rank: int  # the place of the holder among the holders of the shard, 0 for the primary
    digest: bytes  # a digest of the additions in the copy


@dataclass(frozen=True)
class Known:
    """The description of a table in a member's report."""

    spec: TableSpec
    shards: int  # the number of shards
    is_ready: bool = False  # whether the first values are stored
    copies: tuple[HeldShard, ...] = ()  # the member's copies
    holders: tuple[tuple[str, ...], ...] = ()  # by shard, as far as the member knows
    # By shard: the lowest epoch of copies that have all acknowledged additions, as far as the
    # member knows. Empty if the member was excluded, and does not know.
    needed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Told:
    """The report that a member sends at the start of a membership view."""

    tables: Mapping[int, Known]  # by table number
    passed: int | None = None  # the number of barriers that the member passed; `None`: it is new
    is_waiting: bool = False  # whether the member waits in a barrier

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
    """The holders of a table's shards in a membership view, and the copies to make."""

    spec: TableSpec
    shards: int
    is_ready: bool
    placement: ShardPlacement  # the holders of each shard
    copies: tuple[ShardTransfer, ...] = ()  # the copies to make first
    # As in `Known`, before the view. Empty if this node was excluded from the view.
    needed: tuple[int, ...] = ()
    epoch: int = 0


def digest_of(applied: Mapping[str, tuple[int, int]]) -> bytes:
    """Return a digest of a shard's applied additions, from `ReplicatedState.applied`."""
    text = json.dumps(sorted(applied.items()))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def new_plan(spec: TableSpec, shards: int, members: tuple[str, ...], epoch: int = 0) -> TablePlan:
    """Return the plan of a new table, made after the start of the current membership view."""
    placement, needed = initial(members, shards, spec.replicas), (epoch,) * shards
    return TablePlan(spec, shards, False, placement, needed=needed, epoch=epoch)


def plans(
    members: tuple[str, ...], told: Mapping[str, Told], epoch: int = 0
) -> dict[int, TablePlan]:
    """Return the plans of all tables for a new membership view, by table number.

    All members compute the same plans. `members` are the names in the order of ranks. `told` has
    the report of each member.
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
    # If no copy of a shard is found, no node may have used the table yet, and it is all zeros. But
    # if none of the shard's holders is in the view, they may have continued, and used the table.
    before = ShardPlacement(
        tuple(
            names or (() if is_ready or _is_lost(stayed, members, shard) else fresh.holders[shard])
            for shard, names in enumerate(copies)
        )
    )
    # A holder of an older copy gets the newer copy, and uses the older copy until then.
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
            raise ProtocolError("a member has sent an invalid report about its tables")
        tables = {int(row[0]): _unpack_known(*row[1:]) for row in rows}
    except (ValueError, TypeError, IndexError, RecursionError, msgpack.UnpackException):
        raise ProtocolError("a member has sent an invalid report about its tables") from None
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
        raise ProtocolError("a member has reported a table with an invalid number of shards")
    if not {len(holders), len(needed)} <= {0, shards}:
        raise ProtocolError("a member has reported a table without some of its shards")
    held = tuple(HeldShard(int(s), int(e), int(r), _digest(d)) for s, e, r, d in copies)
    names = tuple(tuple(map(str, row)) for row in holders)
    return Known(unpack_spec(spec), shards, bool(is_ready), held, names, tuple(map(int, needed)))


def _digest(given: object) -> bytes:
    if not isinstance(given, bytes):
        raise ProtocolError("a member has reported a shard whose digest is not bytes")
    return given
