"""Bare ZeroMQ: what a streamed round takes with the same passes over the model, and no more.

It has none of dpwa: no choice of a peer, no requests that can fail, no deadlines, no versions.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import numpy as np
import torch
import zmq

from dpwa.bench.model import MERGE_FACTOR
from dpwa.bench.plan import Rank
from dpwa.bench.processes import BenchmarkError
from dpwa.data.checksum import checksum
from dpwa.data.kernels import is_finite
from dpwa.lifecycle import Closeable
from dpwa.runtime import SYSTEM
from dpwa.wire.limits import CHUNK_BYTES, CREDIT_CHUNKS

_NUMBER = struct.Struct("<Q")  # asked: which piece; answered before the piece: its checksum
SLOTS = 3  # the neighbour may still read the one before, and ZeroMQ hold pieces of it
PATIENCE_MS = 60_000


class BareZeroMQ(Closeable):
    """Serves snapshots of this process's model to one neighbour, and fetches those of the other.

    As in dpwa, the model is copied and checked for finite values when it is published; a piece is
    sent without a copy, with its checksum; the other side checks both, copies it to a buffer, and
    merges when all of them are there.

    Args:
        flat: the model of this process, shape `(n,)`.
        rank: which process this is.
        addresses: where each process listens.
    """

    def __init__(
        self, flat: torch.Tensor, rank: Rank, addresses: Sequence[tuple[str, int]]
    ) -> None:
        self._flat = flat
        self._slots = [torch.zeros_like(flat) for _ in range(SLOTS)]
        self._received = torch.zeros_like(flat)
        self._version = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = SYSTEM.zmq_context()
        self._next = _endpoint(addresses[(rank.index + 1) % rank.count])
        self._client = self._context.socket(zmq.DEALER)
        self._client.rcvtimeo = PATIENCE_MS
        listener = self._context.socket(zmq.ROUTER)
        listener.bind(_endpoint(addresses[rank.index]))
        self._server = threading.Thread(
            target=self._serve, args=(listener,), name="bare-zeromq", daemon=True
        )
        self._server.start()

    def connect(self) -> None:
        """Connect to the next process, once all listen."""
        self._client.connect(self._next)

    def publish(self) -> None:
        """Make a snapshot of the model."""
        slot = self._slots[(self._version + 1) % SLOTS]
        for place, values in zip(_pieces(slot), _pieces(self._flat), strict=True):
            np.copyto(place.numpy(), values.numpy())
            if not is_finite(values):
                raise BenchmarkError("bare ZeroMQ: the model is not finite")
        self._version += 1

    def fetch_and_merge(self) -> None:
        """Fetch the whole snapshot of the next process, then merge it."""
        places = _pieces(self._received)
        for index in range(min(CREDIT_CHUNKS, len(places))):
            self._client.send(_NUMBER.pack(index))
        for index, place in enumerate(places):
            header, piece = self._client.recv_multipart(copy=False)
            if index + CREDIT_CHUNKS < len(places):
                self._client.send(_NUMBER.pack(index + CREDIT_CHUNKS))
            if checksum(piece.buffer) != _NUMBER.unpack(header.buffer)[0]:
                raise BenchmarkError("bare ZeroMQ: a piece was corrupted")
            np.copyto(place.numpy(), np.frombuffer(piece.buffer, np.float32))
            if not is_finite(place):
                raise BenchmarkError("bare ZeroMQ: a piece is not finite")
        self._flat.lerp_(self._received, MERGE_FACTOR)

    def round(self) -> None:
        """Publish, fetch and merge."""
        self.publish()
        self.fetch_and_merge()

    def close(self) -> None:
        """Stop fetching and serving."""
        self._client.close(0)
        self._context.term()  # ends the wait of the thread that serves
        self._server.join()

    def _serve(self, listener: zmq.Socket[bytes]) -> None:
        slots = [[piece.numpy().data.cast("B") for piece in _pieces(s)] for s in self._slots]
        pieces = slots[0]
        with listener:
            listener.linger = 0
            while True:
                try:
                    sender, request = listener.recv_multipart()
                except zmq.ContextTerminated:
                    return
                index = _NUMBER.unpack(request)[0]
                if index == 0:
                    pieces = slots[self._version % SLOTS]
                piece = pieces[index]
                listener.send(sender, zmq.SNDMORE)
                listener.send(_NUMBER.pack(checksum(piece)), zmq.SNDMORE)
                listener.send(piece, copy=False)


def _pieces(flat: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(flat, CHUNK_BYTES // flat.element_size())


def _endpoint(address: tuple[str, int]) -> str:
    host, port = address
    return f"tcp://{host}:{port}"
