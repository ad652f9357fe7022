"""A shard of a key-value table: an addition to a new key creates the row of the key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpwa.errors import ProtocolError, UserError
from dpwa.tables.rows import ShardRows, as_integers, by_shard, rows_shape
from dpwa.tables.shard import ReplicatedState, check_ids, check_increasing, state_arrays
from dpwa.tables.updaters import State, Updater
from dpwa.types import JsonObject

_INT64 = np.iinfo(np.int64)
_FIRST_ROOM = 16


def as_keys(given: Any) -> np.ndarray:
    """Return the keys that a user has passed, as an int64 array of shape (n,), in the given order.

    Raises UserError if a key is not an integer, or does not fit 64 bits with a sign.
    """
    keys = as_integers(given, "keys")
    if keys.size and keys.max() > _INT64.max:
        raise UserError(
            f"key {keys.max()} is too large. Use keys from {_INT64.min} to {_INT64.max} [DPWA-E172]"
        )
    return np.ascontiguousarray(keys, np.int64)  # the format in which keys are sent


def shard_of_keys(keys: np.ndarray, shards: int) -> np.ndarray:
    """Return the index of each key's shard. The index is the same on every machine.

    The index is h(key) mod shards. h is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)
    on the 64 bits of the key, mod 2^64:

        z = key + 0x9e3779b97f4a7c15
        z = (z xor (z >> 30)) * 0xbf58476d1ce4e5b9
        z = (z xor (z >> 27)) * 0x94d049bb133111eb
        h = z xor (z >> 31)
    """
    z = keys.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    indices: np.ndarray = (z % np.uint64(shards)).astype(np.int64)
    return indices


def split_keys(keys: np.ndarray, shards: int) -> list[ShardRows]:
    """Divide keys by shard. A `ShardRows` has the keys of one shard as its `rows`.

    Shards without keys get no part. Within a part, the keys stay in the given order.
    """
    parts = by_shard(shard_of_keys(keys, shards), shards)
    return [replace(part, rows=keys[part.where]) for part in parts]


class KeyValueStore(ReplicatedState):
    """Stores the rows of a shard of a key-value table.

    The rows are in the order in which their keys got their first additions. `default` is the value
    of a key without additions. The first addition changes this value.
    """

    def __init__(
        self, columns: int | None, dtype: Any, updater: Updater, default: float = 0.0
    ) -> None:
        super().__init__(columns, dtype, updater)
        self.default = default
        self._slots: dict[int, int] = {}
        self._size = 0
        self._allocate(_FIRST_ROOM)

    def __len__(self) -> int:
        return self._size

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of the rows for the given keys. New keys have the default value.

        `rows` are keys, int64 of shape (n,), in any order. The result has shape (n,) or (n,
        columns).
        """
        self._check_whole()
        check_ids(rows)
        slots = self._find(rows)
        values: np.ndarray = self._values.take(np.maximum(slots, 0), axis=0)
        values[slots < 0] = self.default
        return values

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Return the index of each key's row in the arrays, or -1 for a key without a row."""
        find = self._slots.get
        return np.fromiter((find(key, -1) for key in keys.tolist()), np.int64, len(keys))

    def _update(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        if rows is None:
            raise ProtocolError("a member has sent an addition to a key-value table without keys")
        self._check_delta(delta, len(rows))
        check_increasing(rows)
        self._insert(rows[self._find(rows) < 0])
        self.updater.apply(self._values, self._state, self._find(rows), delta)

    def _insert(self, keys: np.ndarray) -> None:
        start = len(self)
        stop = start + len(keys)
        if stop > len(self._keys):
            self._grow(max(stop, 2 * len(self._keys)))
        self._keys[start:stop] = keys
        self._size = stop  # before the slots, so that an error cannot assign a slot twice
        self._slots.update(zip(keys.tolist(), range(start, stop), strict=True))

    def _grow(self, room: int) -> None:
        old = self._arrays()
        self._allocate(room)
        rows = len(self)
        for name, array in self._arrays().items():
            array[:rows] = old[name]

    def _allocate(self, room: int) -> None:
        shape = rows_shape(room, self.columns)
        keys, values = np.zeros(room, np.int64), np.full(shape, self.default, self.dtype)
        state: State = self.updater.new_state(shape, self.dtype)
        self._keys, self._values, self._state = keys, values, state  # after all memory is allocated

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"keys": self._keys, "values": self._values, **state_arrays(self._state)}
        return {name: array[: len(self)] for name, array in arrays.items()}

    def _resize(self, rows: int) -> None:
        self._allocate(max(rows, _FIRST_ROOM))
        self._size = rows

    def _form(self) -> JsonObject:
        return {**super()._form(), "default": repr(self.default)}

    def _end_import(self) -> None:
        self._slots = {key: slot for slot, key in enumerate(self._keys[: len(self)].tolist())}
        super()._end_import()
