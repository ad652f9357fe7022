"""The common part of primaries and replicas of a shard, for all kinds of rows.

An addition carries the id of its client and a counter: 1, 2, 3, ... for the additions of this
client to this shard. The shard stores the last counter of each client, together with the data, so
that it recognizes a repeated addition, and each takes effect exactly once. Additions arrive in
order. Some may be missing that were acknowledged by a part of the nodes whose tables were given up.
A restarted worker is a new client, with an id of its own.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dpwa.errors import DpwaError, ProtocolError, UserError
from dpwa.tables.rows import is_increasing, rows_shape
from dpwa.tables.updaters import Updater
from dpwa.types import JsonObject

CHUNK_BYTES = 256 * 1024

HEADER = "header"
_END = "end"
_CRC_BYTES = 4

Piece = tuple[str, bytes]


def bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def pieces(header: JsonObject, streams: Mapping[str, memoryview]) -> Iterator[Piece]:
    """Yield a state as pieces of at most `CHUNK_BYTES`, copied one at a time.

    `header` has the sizes that the receiver allocates, and at most `CHUNK_BYTES` as JSON.
    """
    crc = 0
    for name, piece in _contents(header, streams):
        crc = zlib.crc32(piece, crc)
        yield name, piece
    yield _END, crc.to_bytes(_CRC_BYTES, "little")


def _contents(header: JsonObject, streams: Mapping[str, memoryview]) -> Iterator[Piece]:
    yield HEADER, json.dumps(header, sort_keys=True).encode()
    for name, stream in streams.items():
        for start in range(0, stream.nbytes, CHUNK_BYTES):
            yield name, bytes(stream[start : start + CHUNK_BYTES])


class Import:
    """Receives the pieces of a state.

    `begin` allocates the sizes in a header, and returns the memory of each stream. `end` is called
    when all pieces have arrived and the checksum is right.
    """

    def __init__(
        self, begin: Callable[[JsonObject], dict[str, memoryview]], end: Callable[[], None]
    ) -> None:
        self._begin = begin
        self._end = end
        self._crc = 0
        self._open: dict[str, memoryview] | None = None

    @property
    def has_begun(self) -> bool:
        return self._open is not None

    def feed(self, name: str, piece: bytes | memoryview) -> bool:
        """Store the next piece, and return whether it was the last.

        Raises ProtocolError, after which the import has failed, if this is not the next piece,
        bytes have changed on the way, or the state has a different form than the one to fill.
        """
        if name == _END:
            self._finish(piece)
            return True
        self._crc = zlib.crc32(piece, self._crc)
        if self._open is None:
            self._start(name, piece)
        else:
            self._write(self._open, name, piece)
        return False

    def _start(self, name: str, piece: bytes | memoryview) -> None:
        try:
            header = json.loads(bytes(piece)) if name == HEADER else None
        except ValueError:
            header = None
        if not isinstance(header, dict):
            raise ProtocolError(f"a state begins with {name!r}, expected a header in JSON")
        self._open = {
            stream: memory for stream, memory in self._begin(header).items() if memory.nbytes
        }

    def _write(self, unfilled: dict[str, memoryview], name: str, piece: bytes | memoryview) -> None:
        expected = next(iter(unfilled), _END)
        if name != expected:
            raise ProtocolError(f"a piece of {name!r} came, expected one of {expected!r}")
        memory = unfilled[name]
        if not 0 < len(piece) <= memory.nbytes:
            raise ProtocolError(
                f"a piece of {name!r} has {len(piece)} bytes, expected 1 to {memory.nbytes}"
            )
        memory[: len(piece)] = piece
        unfilled[name] = memory[len(piece) :]
        if not unfilled[name].nbytes:
            del unfilled[name]

    def _finish(self, piece: bytes | memoryview) -> None:
        if self._open is None or self._open:
            missing = ", ".join(self._open or (HEADER,))
            raise ProtocolError(f"a state has ended before all of it came: {missing}")
        if bytes(piece) != self._crc.to_bytes(_CRC_BYTES, "little"):
            raise ProtocolError("the checksum of a state is wrong: pieces were changed or left out")
        self._end()


DTYPES = ("float32", "float64")


class ReplicatedState(ABC):
    """Rows, the state of their updater, and the additions in them.

    `applied` has the last counter of each client, and the number of its additions in the state, as
    some may have been refused. `additions` is the number of all additions in it. While `is_whole`
    is false, from the beginning of an import to its end, the state may not be used.
    """

    def __init__(self, columns: int | None, dtype: Any, updater: Updater) -> None:
        self.columns = columns
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise UserError(f"a table of {self.dtype}; expected {' or '.join(DTYPES)} [DPWA-E169]")
        self.updater = updater
        self.applied: dict[str, tuple[int, int]] = {}
        self.additions = 0
        self.is_whole = True
        self._incoming = bytearray()

    @abstractmethod
    def read_rows(self, rows: Any) -> np.ndarray:
        """Return a copy of some rows. Raises `ProtocolError` if that is impossible."""

    @abstractmethod
    def _arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays of the state, with those of the updater as `state.NAME`."""

    @abstractmethod
    def _resize(self, rows: int) -> None:
        """Allocate space to import this many rows. Raises `ProtocolError` if that is impossible."""

    @abstractmethod
    def _update(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        """Check an addition, then apply it. Raises `ProtocolError` if it is malformed."""

    def _assign(self, rows: np.ndarray | None, delta: np.ndarray) -> None:  # noqa: ARG002
        """Check values, and only then put them in place of those that there are."""
        raise ProtocolError("the rows of this table have no first values")

    def apply(
        self,
        client: str,
        counter: int,
        rows: np.ndarray | None,
        delta: np.ndarray,
        *,
        is_first: bool = False,
    ) -> bool:
        """Apply an addition once, all of it or, if an error is raised, nothing.

        `counter` counts the client's additions to this shard from 1. `rows` are of this shard (or
        keys), int64 of shape (n,), increasing. `None` stands for all rows. `delta` has shape (n,)
        or (n, columns) and the dtype of the table. With `is_first` it replaces the values of the
        rows, without the updater. Returns `False` if the addition was applied before.
        """
        self._check_whole()
        last, count = self.applied.get(client, (0, 0))
        if counter <= last:
            return False
        change = self._assign if is_first else self._update
        try:
            change(rows, delta)
        except ProtocolError:
            raise
        except Exception as error:  # of an updater of the user, or no memory
            raise ProtocolError(f"{self.updater.name!r} failed: {error!r}") from error
        self.applied[client] = counter, count + 1
        self.additions += 1
        return True

    def export(self) -> Iterator[Piece]:
        """Yield the whole state as named pieces of at most 256 KiB.

        Raises DpwaError if an addition was applied in between, so that the pieces do not fit
        together.
        """
        self._check_whole()
        additions = self.additions
        applied = json.dumps(sorted(self.applied.items())).encode()
        arrays = self._arrays()
        header = {
            "form": self._form(),
            "rows": len(next(iter(arrays.values()))),
            "applied_bytes": len(applied),
        }
        streams = {name: bytes_of(array) for name, array in arrays.items()}
        for piece in pieces(header, {"applied": memoryview(applied), **streams}):
            if self.additions != additions:
                raise DpwaError("a shard was changed while its state was exported [DPWA-E184]")
            yield piece

    def importing(self) -> Import:
        """Begin to replace the whole state. The returned object accepts the pieces of `export`.

        The state cannot be used until the last piece has arrived. If the import fails, only a new
        import makes it usable again. An earlier import must be dropped.
        """
        self.is_whole = False
        return Import(self._begin_import, self._end_import)

    def _form(self) -> JsonObject:
        return {
            "kind": type(self).__name__,
            "columns": self.columns,
            "dtype": self.dtype.str,
            "updater": self.updater.name,
            "options": self.updater.options.model_dump(mode="json"),
        }

    def _begin_import(self, header: JsonObject) -> dict[str, memoryview]:
        form = header.get("form")
        if form != self._form():
            raise ProtocolError(f"the state of another table came: {form}, not {self._form()}")
        rows, applied_bytes = (_size(header, name) for name in ("rows", "applied_bytes"))
        self._resize(rows)
        self._incoming = bytearray(applied_bytes)
        streams = {name: bytes_of(array) for name, array in self._arrays().items()}
        return {"applied": memoryview(self._incoming), **streams}

    def _end_import(self) -> None:
        try:
            applied = json.loads(self._incoming)
            self.applied = {str(client): (int(last), int(n)) for client, (last, n) in applied}
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"the additions that a state contains: {error}") from None
        self.additions = sum(count for _, count in self.applied.values())
        self._incoming = bytearray()
        self.is_whole = True

    def _check_whole(self) -> None:
        if not self.is_whole:
            raise ProtocolError("this copy of a shard is not complete: its state is still to come")

    def _check_delta(self, delta: np.ndarray, rows: int) -> None:
        """Raise a `ProtocolError` unless a delta is of this many rows of the table."""
        shape = rows_shape(rows, self.columns)
        if delta.shape != shape or delta.dtype != self.dtype:
            raise ProtocolError(
                f"a delta of shape {delta.shape} and dtype {delta.dtype} came, "
                f"expected {shape} and {self.dtype}"
            )


def _size(header: JsonObject, name: str) -> int:
    size = header.get(name)
    if not isinstance(size, int) or size < 0:
        raise ProtocolError(f"the header of a state has {name} {size!r}, expected a size")
    return size


def check_ids(ids: np.ndarray) -> None:
    """Raise a `ProtocolError` unless these are row ids or keys as they are sent."""
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise ProtocolError(f"ids of shape {ids.shape} and dtype {ids.dtype}, expected (n,), int64")


def check_increasing(ids: np.ndarray) -> None:
    """Raise a `ProtocolError` unless ids are as `accumulate` returns them."""
    check_ids(ids)
    if not is_increasing(ids):
        raise ProtocolError("the rows of an addition are not increasing: duplicates would be lost")


def state_arrays(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of an updater under the names they are sent by."""
    return {f"state.{name}": array for name, array in state.items()}
