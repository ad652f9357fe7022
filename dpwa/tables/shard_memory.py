"""The memory of a shard's values. Processes on this host read it while it changes.

A sequence number precedes the values. It is odd while an addition is applied. So a reader sees each
addition to a shard completely or not at all, or notices that it must read again.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.errors import ProtocolError
from dpwa.tables.rows import rows_shape
from dpwa.tables.shard import Import, ReplicatedState, check_ids, check_increasing, state_arrays
from dpwa.tables.specs import TableSpec
from dpwa.tables.updaters import Rows, Updater

_ALL = slice(None)


class ShardState(ReplicatedState):
    """The rows of a shard, numbered from its first row, with the updater's state.

    `memory` has the initial values. It is contiguous, of shape (rows,) or (rows, columns). `None`
    allocates new memory with zeros.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None,
        dtype: Any,
        updater: Updater,
        memory: np.ndarray | None = None,
    ) -> None:
        super().__init__(columns, dtype, updater)
        shape = rows_shape(rows, columns)
        values = np.zeros(shape, self.dtype) if memory is None else memory
        if values.shape != shape or values.dtype != self.dtype or not values.flags.carray:
            raise ValueError(
                f"got memory of shape {values.shape} and dtype {values.dtype}, expected writeable "
                f"and contiguous memory of shape {shape} and dtype {self.dtype}"
            )
        self.values: np.ndarray = values
        self._state = updater.new_state(shape, self.dtype)

    def read_rows(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return a copy of all rows, or of the rows with the given int64 numbers."""
        self._check_whole()
        if rows is None:
            return np.array(self.values)
        check_ids(rows)
        self._check_bounds(rows)
        return np.take(self.values, rows, axis=0)

    def _update(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        where = self._where(rows, delta)
        self.updater.apply(self.values, self._state, where, delta)

    def _assign(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        self.values[self._where(rows, delta)] = delta

    def _where(self, rows: np.ndarray | None, delta: np.ndarray) -> Rows:
        self._check_delta(delta, len(self.values) if rows is None else len(rows))
        if rows is None:
            return _ALL
        check_increasing(rows)
        self._check_bounds(rows)
        return rows

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"values": self.values, **state_arrays(self._state)}

    def _resize(self, rows: int) -> None:
        if rows != len(self.values):
            raise ProtocolError(
                f"the state of a shard has {rows} rows, expected {len(self.values)}"
            )

    def _check_bounds(self, rows: np.ndarray) -> None:
        if rows.size and not (rows.min() >= 0 and rows.max() < len(self.values)):
            raise ProtocolError(
                f"got row ids {rows.min()} to {rows.max()} for a shard of {len(self.values)} rows"
            )


HEADER_BYTES = 64
NO_IMAGE = 0

# On other processors, a core may see the sequence number before the values.
READS_IN_ORDER = platform.machine() in ("x86_64", "AMD64")


class ShardMemory:
    """Memory with a sequence number in a header of `HEADER_BYTES`, then a shard's values."""

    def __init__(self, memory: ByteArray, spec: TableSpec, rows: int) -> None:
        self._sequence = memory[:8].view(np.uint64)
        stop = HEADER_BYTES + rows * spec.row_bytes
        self.values = memory[HEADER_BYTES:stop].view(spec.dtype).reshape(spec.shape(rows))

    @classmethod
    def fits(cls, memory: ByteArray, spec: TableSpec, rows: int) -> bool:
        return memory.nbytes >= HEADER_BYTES + rows * spec.row_bytes

    def read_into(
        self, target: np.ndarray, where: slice | np.ndarray, rows: np.ndarray | None
    ) -> bool:
        """Copy rows to `target[where]`. Return whether the copy is consistent."""
        before = int(self._sequence[0])
        if before % 2:
            return False
        if rows is None:
            target[where] = self.values
        elif isinstance(where, slice):
            # All rows are in range, but "clip" saves numpy a second buffer.
            np.take(self.values, rows, axis=0, out=target[where], mode="clip")
        else:
            target[where] = np.take(self.values, rows, axis=0, mode="clip")
        return int(self._sequence[0]) == before

    @contextmanager
    def changing(self) -> Iterator[None]:
        self._sequence[0] += np.uint64(1)
        try:
            yield
        finally:
            self._sequence[0] += np.uint64(1)


@dataclass
class ShardCopy:
    """This node's copy of a shard."""

    state: ReplicatedState
    memory: ShardMemory | None = None  # the memory of its values; `None` for a key-value table
    image: int = NO_IMAGE  # the number of the shared memory for peers on this host, or 0
    segment: SharedSegment | None = None
    epoch: int = 0  # for `epoch` and `rank`, see `dpwa.tables.directory.HeldShard`
    rank: int = 0
    # receives the state from another member, until the state is complete
    incoming: Import | None = None

    def apply(
        self,
        client: str,
        counter: int,
        rows: np.ndarray | None,
        delta: np.ndarray,
        *,
        is_first: bool,
    ) -> None:
        """Apply an addition, unless it was applied before. See `ReplicatedState.apply`."""
        with nullcontext() if self.memory is None else self.memory.changing():
            self.state.apply(client, counter, rows, delta, is_first=is_first)

    def close(self) -> None:
        """Free the memory. Processes that have mapped it can use it until they unmap it."""
        if self.segment is not None:
            self.segment.close()


def new_copy(spec: TableSpec, rows: int, contacts: Contacts) -> ShardCopy:
    """Return the initial copy of a shard: zeros, or an empty key-value store."""
    if spec.kind == "key_value":
        return ShardCopy(spec.make_key_value_store())
    nbytes = HEADER_BYTES + rows * spec.row_bytes
    made = contacts.buffer(nbytes) if contacts.offer_memory() and READS_IN_ORDER else None
    image, segment = made or (NO_IMAGE, None)
    data = np.zeros(nbytes, np.uint8) if segment is None else segment.data
    memory = ShardMemory(data, spec, rows)
    updater = spec.make_updater()
    state = ShardState(rows, spec.columns, spec.dtype, updater, memory.values)
    return ShardCopy(state, memory, image, segment)
