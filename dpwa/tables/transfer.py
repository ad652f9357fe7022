"""The state of a shard as pieces of bounded size, for another member to become a replica.

The pieces are, in this order: `header` (JSON: what follows, and how many bytes of it), those of
each stream under its name, and `end` with the CRC-32 of all bytes before. The receiver takes them
one by one; what is missing, comes twice or out of order is found at the latest at the end.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dpwa.errors import ProtocolError
from dpwa.types import JsonObject

CHUNK_BYTES = 256 * 1024

HEADER = "header"
_END = "end"
_CRC_BYTES = 4

Piece = tuple[str, bytes]


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the memory of an array that is contiguous, as bytes."""
    return array.reshape(-1).view(np.uint8).data


def pieces(header: JsonObject, streams: Mapping[str, memoryview]) -> Iterator[Piece]:
    """Yield a state as pieces of at most `CHUNK_BYTES`, copied one at a time.

    Args:
        header: what the receiver needs to make room; at most `CHUNK_BYTES` as JSON.
        streams: the bytes, by name.
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
    """Takes in the pieces of a state.

    Args:
        begin: makes room for what a header says; returns the memory of each stream.
        end: called when all has come and the checksum is right.
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
        """Whether the header has come."""
        return self._open is not None

    def feed(self, name: str, piece: bytes | memoryview) -> bool:
        """Take in the next piece; return whether it was the last.

        Raises:
            ProtocolError: this is not the next piece, or bytes have changed on the way, or the
                state is of another form than the one that was to be filled. The import has failed.
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
