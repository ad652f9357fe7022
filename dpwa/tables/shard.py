"""Base class of shard copies (primary or replica) of tables with row numbers or with keys.

An addition carries the id of its client and a counter. The counter is 1, 2, 3, ... for the
additions of this client to this shard. The shard stores the last counter of each client together
with the data. So it recognizes a repeated addition, and each addition takes effect exactly once.
Additions arrive in order. Counters can be missing, if a part of the cluster acknowledged these
additions and later gave up its tables. A restarted worker is a new client with a new id.
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
    """Yield a shard's state as pieces of at most `CHUNK_BYTES`. Copy one piece at a time.

    `header` holds the sizes that the receiver allocates. As JSON it has at most `CHUNK_BYTES`.
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
    """Receives the pieces of a shard's state from another member.

    `begin` allocates memory of the sizes in a header, and returns the memory of each stream. `end`
    is called when all pieces have arrived and the checksum is right.
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
        """Store the next piece, and return whether it was the last piece.

        Raises ProtocolError if this is not the next piece, if bytes have changed on the way, or if
        the state has a different form from this shard's. After the error, the import has failed.
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
            raise ProtocolError(
                f"the state of a shard starts with {name!r}, expected a header in JSON"
            )
        self._open = {
            stream: memory for stream, memory in self._begin(header).items() if memory.nbytes
        }

    def _write(self, unfilled: dict[str, memoryview], name: str, piece: bytes | memoryview) -> None:
        expected = next(iter(unfilled), _END)
        if name != expected:
            raise ProtocolError(f"got a piece of {name!r}, expected a piece of {expected!r}")
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
            raise ProtocolError(
                f"the state of a shard ended, but these parts are missing: {missing}"
            )
        if bytes(piece) != self._crc.to_bytes(_CRC_BYTES, "little"):
            raise ProtocolError("the state of a shard has a wrong checksum, so pieces were changed")
        self._end()


DTYPES = ("float32", "float64")


class ReplicatedState(ABC):
    """The rows of a shard, the state of their updater, and the numbers of the applied additions.

    `applied` holds the last counter of each client, and the number of the client's additions in the
    state. The number can be lower, because additions may have been refused. `additions` is the
    number of all additions in the state. The state must not be used while `is_whole` is false, from
    the start of an import to its end.
    """

    def __init__(self, columns: int | None, dtype: Any, updater: Updater) -> None:
        self.columns = columns
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise UserError(
                f"a table has dtype {self.dtype}, expected {' or '.join(DTYPES)} [DPWA-E169]"
            )
        self.updater = updater
        self.applied: dict[str, tuple[int, int]] = {}
        self.additions = 0
        self.is_whole = True
        self._incoming = bytearray()

    @abstractmethod
    def read_rows(self, rows: Any) -> np.ndarray:
        """Return a copy of the given rows. Raises `ProtocolError` if they do not exist."""

    @abstractmethod
    def _arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays of the shard's state. The updater's arrays are named `state.NAME`."""

    @abstractmethod
    def _resize(self, rows: int) -> None:
        """Allocate memory for `rows` rows. Raises `ProtocolError` if it is invalid."""

    @abstractmethod
    def _update(self, rows: np.ndarray | None, delta: np.ndarray) -> None:
        """Check and apply an addition. Raises `ProtocolError` if it is malformed."""

    def _assign(self, rows: np.ndarray | None, delta: np.ndarray) -> None:  # noqa: ARG002
        """Check the given row values, then overwrite the present row values."""
        raise ProtocolError("this table accepts no initial values for its rows")

    def apply(
        self,
        client: str,
        counter: int,
        rows: np.ndarray | None,
        delta: np.ndarray,
        *,
        is_first: bool = False,
    ) -> bool:
        """Apply an addition once. If an error is raised, no part of the addition is applied.

        `counter` counts the client's additions to this shard, from 1. `rows` are numbers of this
        shard's rows (or keys), int64 of shape (n,), increasing. `None` means all rows. `delta` has
        shape (n,) or (n, columns) and the dtype of the table. With `is_first`, the values are
        replaced, and the updater is not used. Returns `False` if the addition was applied before.
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
        except Exception as error:  # a user's updater failed, or memory is short
            raise ProtocolError(f"{self.updater.name!r} failed: {error!r}") from error
        self.applied[client] = counter, count + 1
        self.additions += 1
        return True

    def export(self) -> Iterator[Piece]:
        """Yield the whole state as named pieces of at most 256 KiB.

        Raises DpwaError if an addition was applied between two pieces, so that they do not fit
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
                raise DpwaError("a shard has changed while its state was exported [DPWA-E184]")
            yield piece

    def importing(self) -> Import:
        """Begin to replace the whole state. The returned object accepts the pieces of `export`.

        The state cannot be used before the last piece has arrived. If the import fails, only a new
        import makes the state usable again. The caller must drop an earlier import.
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
            raise ProtocolError(f"got the state of a different table: {form}, not {self._form()}")
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
            what = "the state of a shard has an invalid list of the additions that it contains"
            raise ProtocolError(f"{what}: {error}") from None
        self.additions = sum(count for _, count in self.applied.values())
        self._incoming = bytearray()
        self.is_whole = True

    def _check_whole(self) -> None:
        if not self.is_whole:
            raise ProtocolError("this copy of a shard is incomplete, and waits for its state")

    def _check_delta(self, delta: np.ndarray, rows: int) -> None:
        """Raise `ProtocolError` if a delta does not fit this number of rows of the table."""
        shape = rows_shape(rows, self.columns)
        if delta.shape != shape or delta.dtype != self.dtype:
            raise ProtocolError(
                f"got a delta of shape {delta.shape} and dtype {delta.dtype}, "
                f"expected {shape} and {self.dtype}"
            )


def _size(header: JsonObject, name: str) -> int:
    size = header.get(name)
    if not isinstance(size, int) or size < 0:
        raise ProtocolError(
            f"the header of the state has {name}={size!r}, expected a whole number of at least 0"
        )
    return size


def check_ids(ids: np.ndarray) -> None:
    """Raise `ProtocolError` if an array is not in the format of sent row ids or keys."""
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise ProtocolError(
            f"got row ids or keys of shape {ids.shape} and dtype {ids.dtype}, expected (n,) and "
            "int64"
        )


def check_increasing(ids: np.ndarray) -> None:
    """Raise `ProtocolError` if the ids of an addition are not sorted and unique."""
    check_ids(ids)
    if not is_increasing(ids):
        raise ProtocolError("the row ids or keys of an addition must be sorted and unique")


def state_arrays(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return an updater's state arrays under the names that messages use, `state.NAME`."""
    return {f"state.{name}": array for name, array in state.items()}
