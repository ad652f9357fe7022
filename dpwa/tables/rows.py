"""What users pass as rows and as deltas, checked; and cut into what goes to each shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpwa.errors import UserError
from dpwa.wire import limits


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
            " [DPWA-E169]"
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
        raise UserError("a table needs at least one member to hold it [DPWA-E169]")
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


@dataclass(frozen=True)
class ShardRows:
    """The part of a read or of an addition that goes to one shard.

    Attributes:
        shard: index of the shard.
        where: which of the ids given (of all rows, without ids): `delta[part.where]` is to be sent,
            `result[part.where] = answer` is what came.
        rows: of the shard, int64 of shape (n,), in the order of `where`; `None`: all of them.
    """

    shard: int
    where: slice | np.ndarray
    rows: np.ndarray | None


def as_array(given: Any, what: str) -> np.ndarray:
    """Return an array of what a user has passed: a number, list, array or tensor of any device.

    It may share the memory of what was given.

    Raises:
        UserError: it is no such thing; the message begins with `what`.
    """
    if hasattr(given, "detach"):  # a tensor: arrays know neither its device nor bfloat16
        given = given.detach().cpu()
        if given.is_floating_point() and given.element_size() < 4:
            given = given.float()
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(
            f"{what}: expected numbers, got {given!r:.80} ({error}) [DPWA-E175]"
        ) from None
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{what}: expected numbers, got {given!r:.80} of dtype {array.dtype} [DPWA-E175]"
        )
    return array


def as_integers(given: Any, what: str) -> np.ndarray:
    """Return an array of shape (n,) of the integers that a user has passed, of their own dtype.

    Raises:
        UserError: they are not integers, or of more than one dimension.
    """
    if isinstance(given, range):
        given = np.arange(given.start, given.stop, given.step)
    array = np.atleast_1d(as_array(given, what))
    if array.ndim > 1:
        raise UserError(f"{what}: expected one dimension, got shape {array.shape} [DPWA-E176]")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        hint = " (of a mask, pass numpy.flatnonzero(mask))" if array.dtype.kind == "b" else ""
        raise UserError(f"{what}: expected integers, got {array.dtype}{hint} [DPWA-E177]")
    return array


def as_row_ids(given: Any, rows: int) -> np.ndarray:
    """Return the rows that a user has named, int64 of shape (n,), in the order given.

    Args:
        given: an integer, list, tuple, range, array or tensor; a row may come several times.
        rows: of the table; ids are from 0 to rows - 1.

    Raises:
        UserError: not integers, or there is no such row.
    """
    ids = as_integers(given, "row_ids")
    outside = (ids < 0) | (ids >= rows)
    if outside.any():
        place = int(outside.argmax())
        expected = f"expected 0 to {rows - 1}" if rows else "the table has no rows"
        raise UserError(f"row_ids[{place}] is {ids[place]}; {expected} [DPWA-E173]")
    return np.asarray(ids, np.int64)


def rows_shape(rows: int, columns: int | None) -> tuple[int, ...]:
    """Return the shape of some rows; the table is a vector when `columns` is `None`."""
    return (rows,) if columns is None else (rows, columns)


def as_values(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return what a user has passed as values of rows, as an array of this shape and dtype.

    One row may also come without its first dimension. What is not finite stays so. The array may
    share the memory of what was given.

    Raises:
        UserError: not numbers, or of another shape.
    """
    array = as_array(given, "values of a table")
    if array.shape != shape and not (shape[0] == 1 and array.shape == shape[1:]):
        raise UserError(f"values of a table: got shape {array.shape}, expected {shape} [DPWA-E174]")
    return np.ascontiguousarray(array, dtype).reshape(shape)


def accumulate(ids: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the rows that have the same id.

    Args:
        ids: of shape (n,).
        delta: of shape (n,) or (n, columns).

    Returns:
        The ids, sorted, each once; and the sum of the rows of each. The arrays given, when they are
        so already.
    """
    if is_increasing(ids):
        return ids, delta
    order = ids.argsort(kind="stable")
    ids = ids[order]
    is_first = np.concatenate(([True], ids[1:] != ids[:-1]))
    sums = delta.take(order[is_first], axis=0)
    place = np.cumsum(is_first) - 1
    # Most rows come once: adding up the others alone is ten times as fast as adding up all.
    np.add.at(sums, place[~is_first], delta.take(order[~is_first], axis=0))
    return ids[is_first], sums


def is_increasing(ids: np.ndarray) -> bool:
    """Whether the ids are sorted, and each comes once."""
    return bool((ids[1:] > ids[:-1]).all())


def split(ids: np.ndarray | None, shards: Sequence[TableShard]) -> list[ShardRows]:
    """Cut the rows that a user has named into parts for those shards that have some of them.

    Args:
        ids: as `as_row_ids` returns them, in any order; `None`: all rows.
        shards: as `cut` returns them.
    """
    if ids is None:
        return [ShardRows(s.index, slice(s.start, s.stop), None) for s in shards if s.rows]
    shard_of_id = np.searchsorted([shard.stop for shard in shards], ids, side="right")
    return [
        ShardRows(part.shard, part.where, ids[part.where] - shards[part.shard].start)
        for part in by_shard(shard_of_id, len(shards))
    ]


def by_shard(shard_of_id: np.ndarray, shards: int) -> list[ShardRows]:
    """Return the places of the ids of each shard; the parts name no rows.

    Args:
        shard_of_id: index of the shard of each id, of shape (n,).
        shards: how many there are.
    """
    order: np.ndarray | None = None
    if (shard_of_id[1:] < shard_of_id[:-1]).any():
        order = shard_of_id.argsort(kind="stable")
        shard_of_id = shard_of_id[order]
    bounds = np.searchsorted(shard_of_id, np.arange(shards + 1)).tolist()
    return [
        ShardRows(i, slice(start, stop) if order is None else order[start:stop], None)
        for i, (start, stop) in enumerate(pairwise(bounds))
        if start < stop
    ]


def check_size(nbytes: int) -> None:
    """Raise a `UserError` if so much cannot be sent to one shard at once."""
    if nbytes > limits.MAX_KEYS_BYTES:
        raise UserError(
            f"{nbytes} bytes for one shard at once, at most {limits.MAX_KEYS_BYTES}: "
            "name fewer rows or keys, or all rows [DPWA-E181]"
        )
