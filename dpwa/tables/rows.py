"""Check the rows and values that users pass, and divide them into shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpwa.errors import UserError
from dpwa.wire import limits


@dataclass(frozen=True)
class TableShard:
    """Rows `start` (inclusive) to `stop` (exclusive) of a table. A shard may be empty."""

    index: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@lru_cache(maxsize=64)
def cut(rows: int, shards: int) -> tuple[TableShard, ...]:
    """Divide a table into contiguous shards whose sizes differ by at most one row.

    If there are fewer rows than shards, the last shards are empty.
    """
    if rows < 0 or shards < 1:
        raise UserError(
            f"a table cannot have {rows} rows in {shards} shards. Use at least 0 rows and 1 shard"
            " [DPWA-E169]"
        )
    size, larger = divmod(rows, shards)
    starts = [index * size + min(index, larger) for index in range(shards + 1)]
    return tuple(TableShard(index, *starts[index : index + 2]) for index in range(shards))


@dataclass(frozen=True)
class ShardPlacement:
    """The members that hold each shard."""

    # by shard: the names of its holders, the primary first, or none if all copies were lost
    holders: tuple[tuple[str, ...], ...]

    def primary(self, shard: int) -> str:
        """Return the member that accepts additions to a shard. Raise LookupError if it has none."""
        if not self.holders[shard]:
            raise LookupError(f"no copy of shard {shard} is left on any member")
        return self.holders[shard][0]

    def held_by(self, member: str) -> tuple[int, ...]:
        return tuple(i for i, holders in enumerate(self.holders) if member in holders)


class ShardTransfer(NamedTuple):
    """A transfer of a shard's state from one member to another member."""

    shard: int
    source: str
    target: str


def initial(members: Sequence[str], shards: int, replicas: int) -> ShardPlacement:
    """Assign new shards to members: primaries in turn, and replicas to the next members.

    `members` are in the order of the view. A shard has `replicas` copies besides the primary, or
    fewer if there are not enough members.
    """
    if not members:
        raise UserError("a table needs at least one member to hold its rows [DPWA-E169]")
    copies = 1 + min(replicas, len(members) - 1)
    return ShardPlacement(
        tuple(
            tuple(members[(shard + turn) % len(members)] for turn in range(copies))
            for shard in range(shards)
        )
    )


def after(placement: ShardPlacement, members: Sequence[str], replicas: int) -> ShardPlacement:
    """Return the placement of shards in a new membership view. All members compute the same one.

    Surviving copies stay on their members, and the earliest of them is the primary. Missing
    replicas go to the members with the fewest copies. Among equals, the first member of the view
    comes first. A shard without a surviving copy has no holders. All copies of `placement` must be
    complete.
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
    """Return the transfers that give each holder in `now` the state of its shards."""
    return [
        ShardTransfer(shard, holders[0], member)
        for shard, holders in enumerate(now.holders)
        for member in holders
        if member not in before.holders[shard]
    ]


@dataclass(frozen=True)
class ShardRows:
    """The part of a read or of an addition that belongs to one shard.

    `where` holds the places of the part in the given ids (or in all rows, without ids). The
    addition sends `delta[part.where]`. The answer to a read is stored as `result[part.where] =
    answer`.
    """

    shard: int
    where: slice | np.ndarray
    # the shard's own row numbers, int64 of shape (n,), in the order of `where`; `None`: all rows
    rows: np.ndarray | None


def as_array(given: Any, what: str) -> np.ndarray:
    """Return a user's argument (a number, list, array or tensor on any device) as an array.

    The array may share the memory of the argument. `what` starts the message of a UserError.
    """
    if hasattr(given, "detach"):  # numpy supports neither a tensor's device nor bfloat16
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
    """Return the integers that a user has passed, as an array of shape (n,), in their own dtype."""
    if isinstance(given, range):
        given = np.arange(given.start, given.stop, given.step)
    array = np.atleast_1d(as_array(given, what))
    if array.ndim > 1:
        raise UserError(f"{what}: expected one dimension, got shape {array.shape} [DPWA-E176]")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        hint = " (for a mask, pass numpy.flatnonzero(mask))" if array.dtype.kind == "b" else ""
        raise UserError(f"{what}: expected integers, got {array.dtype}{hint} [DPWA-E177]")
    return array


def as_row_ids(given: Any, rows: int) -> np.ndarray:
    """Return the row numbers that a user has passed, int64 of shape (n,), in the given order.

    A row may occur several times. Rows are numbered from 0 to rows - 1.
    """
    ids = as_integers(given, "row_ids")
    outside = (ids < 0) | (ids >= rows)
    if outside.any():
        place = int(outside.argmax())
        expected = f"expected 0 to {rows - 1}" if rows else "the table has no rows"
        raise UserError(f"row_ids[{place}] is {ids[place]}, {expected} [DPWA-E173]")
    return np.asarray(ids, np.int64)


def rows_shape(rows: int, columns: int | None) -> tuple[int, ...]:
    """Return the shape of an array of rows. If `columns` is `None`, the table is a vector."""
    return (rows,) if columns is None else (rows, columns)


def as_values(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return a user's row values as an array with the given shape and dtype.

    A single row may lack its first dimension. Values that are not finite are kept. The array may
    share the memory of the argument.
    """
    array = as_array(given, "values of a table")
    if array.shape != shape and not (shape[0] == 1 and array.shape == shape[1:]):
        raise UserError(f"values of a table: got shape {array.shape}, expected {shape} [DPWA-E174]")
    return np.ascontiguousarray(array, dtype).reshape(shape)


def accumulate(ids: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the rows of `delta`, shape (n,) or (n, columns), that have the same id.

    Returns the sorted ids, each once, and the sum of the rows of each id. If the given ids are
    sorted and unique already, it returns the given arrays.
    """
    if is_increasing(ids):
        return ids, delta
    order = ids.argsort(kind="stable")
    ids = ids[order]
    is_first = np.concatenate(([True], ids[1:] != ids[:-1]))
    sums = delta.take(order[is_first], axis=0)
    place = np.cumsum(is_first) - 1
    # Most rows occur once. Adding only the repeated rows is ten times as fast as adding all rows.
    np.add.at(sums, place[~is_first], delta.take(order[~is_first], axis=0))
    return ids[is_first], sums


def is_increasing(ids: np.ndarray) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def split(ids: np.ndarray | None, shards: Sequence[TableShard]) -> list[ShardRows]:
    """Group the requested rows by shard, and omit shards without requested rows.

    `ids` are in any order. `None` means all rows.
    """
    if ids is None:
        return [ShardRows(s.index, slice(s.start, s.stop), None) for s in shards if s.rows]
    shard_of_id = np.searchsorted([shard.stop for shard in shards], ids, side="right")
    return [
        ShardRows(part.shard, part.where, ids[part.where] - shards[part.shard].start)
        for part in by_shard(shard_of_id, len(shards))
    ]


def by_shard(shard_of_id: np.ndarray, shards: int) -> list[ShardRows]:
    """Group the indices of `shard_of_id` by shard. Each `ShardRows` has no `rows`."""
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
    """Raise `UserError` if `nbytes` are too many bytes for one call on one shard."""
    if nbytes > limits.MAX_KEYS_BYTES:
        raise UserError(
            f"one call may send at most {limits.MAX_KEYS_BYTES} bytes to one shard (got {nbytes}). "
            "Pass fewer rows or keys. To read all rows of an ArrayTable, omit `row_ids` [DPWA-E181]"
        )
