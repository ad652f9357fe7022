"""Plain sockets: the least that streaming over TCP can take, with no protocol and no snapshots."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import torch

from dpwa.bench.model import MERGE_FACTOR
from dpwa.bench.plan import Rank
from dpwa.bench.processes import BenchmarkError
from dpwa.lifecycle import Closeable

PIECE_BYTES = 1024 * 1024
REQUEST = b"?"
PATIENCE_S = 60.0


class RawTcp(Closeable):
    """Serves the model of this process to one neighbour, and fetches that of the other.

    Args:
        flat: the model of this process, shape `(n,)`; it is sent as it is at the moment.
        scratch: what arrives, shape `(n,)`.
        rank: which process this is.
        addresses: where each process listens.
    """

    def __init__(
        self,
        flat: torch.Tensor,
        scratch: torch.Tensor,
        rank: Rank,
        addresses: Sequence[tuple[str, int]],
    ) -> None:
        self._flat = flat
        self._scratch = scratch
        self._listener = socket.create_server(addresses[rank.index])
        self._server = threading.Thread(target=self._serve, name="raw-tcp", daemon=True)
        self._server.start()
        self._address = addresses[(rank.index + 1) % rank.count]
        self._client: socket.socket | None = None

    def connect(self) -> None:
        """Connect to the next process, once all listen."""
        self._client = socket.create_connection(self._address, timeout=PATIENCE_S)
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fetch_and_merge(self) -> None:
        """Fetch the whole model of the next process, then merge it."""
        if self._client is None:
            raise AssertionError("not connected")
        self._client.sendall(REQUEST)
        view = _bytes_of(self._scratch)
        received = 0
        while received < len(view):
            count = self._client.recv_into(view[received:])
            if count == 0:
                raise BenchmarkError("raw TCP: the other process has closed the connection")
            received += count
        self._flat.lerp_(self._scratch, MERGE_FACTOR)

    def close(self) -> None:
        """Stop fetching and serving."""
        if self._client is not None:
            self._client.close()
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        view = _bytes_of(self._flat)
        with connection:
            while connection.recv(len(REQUEST)):
                for start in range(0, len(view), PIECE_BYTES):
                    connection.sendall(view[start : start + PIECE_BYTES])


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")
