"""The asking side of a fetch: messages in, messages out, and the bytes in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpwa.data.layout import Layout
from dpwa.data.snapshot import ByteArray, Snapshot
from dpwa.errors import ProtocolError
from dpwa.policy.health import Outcome
from dpwa.types import Standing
from dpwa.wire import limits
from dpwa.wire.messages import (
    Chunk,
    Credit,
    Fetch,
    Frame,
    Message,
    NotReady,
    OtherModel,
    SnapshotHeader,
    unpack_layout,
)


@dataclass(frozen=True)
class FetchResult:
    """How a fetch ended: the snapshot when it was `FETCHED`, else what went wrong, in words."""

    outcome: Outcome
    snapshot: Snapshot | None = None
    detail: str = ""


class FetchSession:
    """One fetch, from the first message to its result.

    `request_message` opens it; `receive` takes each answer and returns what to send next; `result`
    is set when it has ended. `allocate(nbytes)` gives the buffer to fill, shape `(nbytes,)`.
    """

    def __init__(self, request: int, layout: Layout, allocate: Callable[[int], ByteArray]) -> None:
        self.request = request
        self.result: FetchResult | None = None
        self._layout = layout
        self._allocate = allocate
        self._header: SnapshotHeader | None = None
        self._buffer: ByteArray = np.empty(0, np.uint8)
        self._received_bytes = 0
        self._next_index = 0

    def request_message(self, budget_ms: int) -> Fetch:
        """Return the message that starts the fetch."""
        return Fetch(
            request=self.request,
            fingerprint=self._layout.fingerprint,
            credit=limits.CREDIT_CHUNKS,
            budget_ms=budget_ms,
        )

    def receive(self, message: Message, payload: Frame) -> Credit | None:
        """Take one answer to this request; return the credit to grant, if any.

        Raises:
            ProtocolError: the answer is not allowed here; the session must not be used any more.
        """
        match message:
            case SnapshotHeader():
                self._begin(message)
            case Chunk():
                return self._take(message, payload)
            case NotReady():
                self.result = FetchResult(Outcome.NOT_READY)
            case OtherModel():
                self.result = self._other_model(payload)
            case _:
                raise ProtocolError(f"{message.type!r} is no answer to a fetch")
        return None

    def _begin(self, header: SnapshotHeader) -> None:
        if self._header is not None:
            raise ProtocolError("a second snapshot in one fetch")
        expected = self._layout.nbytes
        if expected is None and header.nbytes > limits.MAX_UNSTRUCTURED_BYTES:
            raise ProtocolError(f"a snapshot of {header.nbytes} bytes")
        if expected is not None and header.nbytes != expected:
            raise ProtocolError(f"a snapshot of {header.nbytes} bytes, expected {expected}")
        self._header = header
        self._buffer = self._allocate(header.nbytes)
        self._finish_if_complete(header)

    def _take(self, chunk: Chunk, payload: Frame) -> Credit | None:
        header = self._header
        if header is None or chunk.index != self._next_index:
            raise ProtocolError(f"chunk {chunk.index}, expected {self._next_index}")
        start = self._received_bytes
        size = min(header.chunk_bytes, header.nbytes - start)
        if len(payload) != size:
            raise ProtocolError(f"a chunk of {len(payload)} bytes, expected {size}")
        self._buffer[start : start + size] = np.frombuffer(payload, np.uint8)
        self._received_bytes += size
        self._next_index += 1
        self._finish_if_complete(header)
        return None if self.result else Credit(request=self.request, chunks=1)

    def _finish_if_complete(self, header: SnapshotHeader) -> None:
        if self._received_bytes == header.nbytes:
            standing = Standing(clock=header.clock, loss=header.loss)
            snapshot = Snapshot(header.version, standing, self._layout, self._buffer)
            self.result = FetchResult(Outcome.FETCHED, snapshot)

    def _other_model(self, payload: Frame) -> FetchResult:
        count, descriptions = unpack_layout(payload)
        difference = self._layout.difference(descriptions, count) or "none that it describes"
        return FetchResult(Outcome.OTHER_MODEL, detail=f"first difference: {difference}")
