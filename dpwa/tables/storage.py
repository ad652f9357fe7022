"""Where the values of a shard live: memory that other processes on this host read while it changes.

A sequence number stands before the values. It is odd while an addition is applied, so that who
reads sees each addition to a shard wholly or not at all, or knows that it must read again.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.tables.shard import ShardState
from dpwa.tables.specs import TableSpec
from dpwa.tables.state import ReplicatedState
from dpwa.tables.transfer import Import

HEADER_BYTES = 64
NO_IMAGE = 0

# Elsewhere another core may see the sequence number before the values.
READS_IN_ORDER = platform.machine() in ("x86_64", "AMD64")


class ShardMemory:
    """The values of a shard, and the number of changes before them.

    Args:
        memory: `HEADER_BYTES`, then the values.
        spec: of the table.
        rows: of the shard.
    """

    def __init__(self, memory: ByteArray, spec: TableSpec, rows: int) -> None:
        self._sequence = memory[:8].view(np.uint64)
        stop = HEADER_BYTES + rows * spec.row_bytes
        self.values = memory[HEADER_BYTES:stop].view(spec.dtype).reshape(spec.shape(rows))

    @classmethod
    def fits(cls, memory: ByteArray, spec: TableSpec, rows: int) -> bool:
        """Tell whether the values of a shard are in there."""
        return memory.nbytes >= HEADER_BYTES + rows * spec.row_bytes

    def read_into(
        self, target: np.ndarray, where: slice | np.ndarray, rows: np.ndarray | None
    ) -> bool:
        """Copy rows once; return whether they fit together.

        Args:
            target: the result.
            where: of the result, one place for each row.
            rows: of the shard; `None`: all of them.
        """
        before = int(self._sequence[0])
        if before % 2:
            return False
        if rows is None:
            target[where] = self.values
        elif isinstance(where, slice):
            # Out-of-range rows were refused before; "clip" only spares numpy a second buffer.
            np.take(self.values, rows, axis=0, out=target[where], mode="clip")
        else:
            target[where] = np.take(self.values, rows, axis=0, mode="clip")
        return int(self._sequence[0]) == before

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let readers know that the values change."""
        self._sequence[0] += np.uint64(1)
        try:
            yield
        finally:
            self._sequence[0] += np.uint64(1)


@dataclass
class ShardCopy:
    """This node's copy of a shard.

    Attributes:
        state: what is in it.
        memory: where its values live; `None` for a key-value table.
        image: the number by which peers on this host find that; 0: they cannot.
        epoch, rank: as in `dpwa.tables.directory.HeldShard`.
        incoming: takes the state that another member sends, until it is complete.
    """

    state: ReplicatedState
    memory: ShardMemory | None = None
    image: int = NO_IMAGE
    segment: SharedSegment | None = None
    epoch: int = 0
    rank: int = 0
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
        """Apply an addition, unless it is in there already; see `ReplicatedState.apply`."""
        change = self.state.assign if is_first else self.state.apply
        if self.memory is None:
            change(client, counter, rows, delta)
        else:
            with self.memory.changing():
                change(client, counter, rows, delta)

    def close(self) -> None:
        """Give the memory back; who has mapped it keeps it until they are done."""
        if self.segment is not None:
            self.segment.close()


def new_copy(spec: TableSpec, rows: int, contacts: Contacts) -> ShardCopy:
    """Return a copy of a shard as it is at first: all zeros, or empty.

    Args:
        spec: of the table.
        rows: of the shard.
        contacts: with whom memory is shared.
    """
    if spec.kind == "key_value":
        return ShardCopy(spec.make_key_value_store())
    nbytes = HEADER_BYTES + rows * spec.row_bytes
    made = contacts.buffer(nbytes) if contacts.share() and READS_IN_ORDER else None
    image, segment = made or (NO_IMAGE, None)
    data = np.zeros(nbytes, np.uint8) if segment is None else segment.data
    memory = ShardMemory(data, spec, rows)
    updater = spec.make_updater()
    state = ShardState(rows, spec.columns, spec.dtype, updater, memory.values)
    return ShardCopy(state, memory, image, segment)
