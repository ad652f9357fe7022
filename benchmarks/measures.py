"""Define measures of rounds of dpwa, and of the same work with Gloo, raw TCP and bare ZeroMQ."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
import zmq
from common import (
    BYTES_PER_VALUE,
    BenchmarkError,
    Measure,
    Sample,
    Session,
    Work,
    node_name,
    timed,
)
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.clock import Deadline, SystemClock
from dpwa.connection import DpwaConnection
from dpwa.data.checksum import checksum
from dpwa.data.kernels import is_finite
from dpwa.lifecycle import Closeable
from dpwa.policy.beginners import BEGINNING
from dpwa.runtime import SYSTEM
from dpwa.wire.limits import CHUNK_BYTES, CREDIT_CHUNKS

MERGE_FACTOR = 0.5  # the factor of a configuration without options
MEET_TIMEOUT_S = 60.0
MEET_PAUSE_S = 0.01
PAUSE_S = 0.02  # a pause instead of training, long enough to fetch 0 bytes
PAUSE_S_PER_BYTE = 1e-9  # addition to the pause for each byte
PIECE_BYTES = 1024 * 1024  # bytes in one call of `sendall`, for raw TCP
REQUEST = b"?"
PATIENCE_S = 60.0
NUMBER = struct.Struct("<Q")  # the index of a piece in a request, and the checksum in its reply
SLOTS = 3  # because another process or ZeroMQ may still read the previous slots


class FlatModel:
    """Random float32 parameters in contiguous memory, which is the fastest layout for Gloo.

    The trainable parameters of `module` share the memory of `flat`, shape `(nbytes // 4,)`.
    """

    def __init__(self, nbytes: int, tensors: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.flat = torch.randn(nbytes // BYTES_PER_VALUE, generator=generator)
        self.module = nn.ParameterList(
            nn.Parameter(part) for part in self.flat.tensor_split(tensors)
        )
        self._growth = 1.001 if seed % 2 else 1 / 1.001

    def train_a_little(self) -> None:
        """Change all values slightly, with a different factor than the next process."""
        self.flat.mul_(self._growth)


# dpwa


def meet(adapter: DpwaPyTorchAdapter) -> None:
    """Gossip until a round has merged a peer. Raise `BenchmarkError` after a minute.

    All processes must call this function at the same time, and then call a barrier.
    """
    # Set a clock above 0, because nodes do not merge a peer that has not trained.
    adapter.connection.node.rounds.resume(BEGINNING, 0)
    deadline = Deadline(SystemClock(), MEET_TIMEOUT_S)
    while not deadline.expired():
        adapter.update_send()
        time.sleep(MEET_PAUSE_S)
        if adapter.update_wait() is not None:
            return
    peers = adapter.connection.node.report()["peers"]
    raise BenchmarkError(f"{adapter.name} merged no peer in {MEET_TIMEOUT_S:.0f} s: {peers}")


def gossip_round(figure: str, adapter: DpwaPyTorchAdapter, pause_s: float = 0.0) -> Measure:
    """Return a measure of a round in all processes, from `update_send` to the end of the merge.

    A pause between both calls simulates the training, and is not timed.
    """

    def run() -> Sample:
        before = time.perf_counter()
        adapter.update_send()
        sent = time.perf_counter()
        if pause_s:
            time.sleep(pause_s)
        waiting = time.perf_counter()
        merge = adapter.update_wait()
        merged = time.perf_counter()
        return None if merge is None else {figure: merged - waiting + sent - before}

    return Measure(run)


def pause_s(nbytes: int) -> float:
    """Return the seconds of a training step that is longer than a fetch on the same host."""
    return PAUSE_S + PAUSE_S_PER_BYTE * nbytes


def one_way(link: str, adapter: DpwaPyTorchAdapter, model: FlatModel, *, is_first: bool) -> Measure:
    """Return a measure in which the first process fetches. The others published before."""

    def prepare() -> None:
        model.train_a_little()
        if not is_first:
            adapter.update_send()
            adapter.update_wait()

    def run() -> Sample:
        if not is_first:
            return {}
        before = time.perf_counter()
        adapter.update_send()
        sent = time.perf_counter()
        merge = adapter.update_wait()
        merged = time.perf_counter()
        if merge is None:
            return None
        return {f"{link}_one_way": merged - before, f"{link}_fetch_merge": merged - sent}

    return Measure(run, prepare)


def reduces_mean(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    """Return a function that sets values of shape `(n,)` to the mean of all processes."""
    return lambda: _require_all(connection, connection.all_reduce(flat, "mean")[1])


def broadcasts(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    return lambda: connection.broadcast(flat, node_name(0))


def gathers(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    return lambda: _require_all(connection, len(connection.all_gather(flat)))


def _require_all(connection: DpwaConnection, contributors: int) -> None:
    count = len(connection.node.config.nodes)
    if contributors < count:
        raise BenchmarkError(f"{contributors} of {count} processes have contributed")


# Gloo in torch.distributed


def gloo_reduces(flat: torch.Tensor) -> Work:
    return lambda: dist.all_reduce(flat)


def gloo_reduces_mean(flat: torch.Tensor) -> Work:
    def work() -> None:
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())

    return work


def gloo_broadcasts(flat: torch.Tensor) -> Work:
    return lambda: dist.broadcast(flat, 0)


def gloo_gathers(flat: torch.Tensor) -> Work:
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(gathered, flat)


def gloo_pair(flat: torch.Tensor, scratch: torch.Tensor, session: Session) -> Measure:
    """Return a measure in which each process sends its model to the next process, and merges."""
    to, source = (session.index + 1) % session.count, (session.index - 1) % session.count

    def work() -> None:
        sending = dist.isend(flat, to)
        receiving = dist.irecv(scratch, source)
        for each in (sending, receiving):
            if each is not None:  # `None` is only for processes outside of the group
                each.wait()
        flat.lerp_(scratch, MERGE_FACTOR)

    return timed("gloo_pair", work)


# A lower bound for streaming


class RawTcp(Closeable):
    """A raw TCP server of this process's model, and a client for the model of the next process.

    There is no protocol, and there are no snapshots. The server sends the current values.
    """

    def __init__(
        self,
        flat: torch.Tensor,
        scratch: torch.Tensor,
        index: int,
        addresses: Sequence[tuple[str, int]],
    ) -> None:
        self._flat = flat
        self._scratch = scratch
        self._listener = socket.create_server(addresses[index])
        threading.Thread(target=self._serve, name="raw-tcp", daemon=True).start()
        self._address = addresses[(index + 1) % len(addresses)]
        self._client: socket.socket | None = None

    def connect(self) -> None:
        self._client = socket.create_connection(self._address, timeout=PATIENCE_S)
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fetch_and_merge(self) -> None:
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


class BareZeroMQ(Closeable):
    """A lower bound for streamed rounds, with only the transfer and the passes over the model.

    Unlike dpwa, this class does not pick peers, and has no failing requests, deadlines or versions.
    As in dpwa, to publish is to copy the model and to check that all values are finite. The server
    sends each piece without a copy, with a checksum. The receiver verifies the checksum, copies the
    piece to a buffer, and merges when all pieces are in the buffer.
    """

    def __init__(
        self, flat: torch.Tensor, index: int, addresses: Sequence[tuple[str, int]]
    ) -> None:
        self._flat = flat
        self._slots = [torch.zeros_like(flat) for _ in range(SLOTS)]
        self._received = torch.zeros_like(flat)
        self._version = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = SYSTEM.zmq_context()
        self._next = _endpoint(addresses[(index + 1) % len(addresses)])
        self._client = self._context.socket(zmq.DEALER)
        self._client.rcvtimeo = round(1000 * PATIENCE_S)
        listener = self._context.socket(zmq.ROUTER)
        listener.bind(_endpoint(addresses[index]))
        self._server = threading.Thread(
            target=self._serve, args=(listener,), name="bare-zeromq", daemon=True
        )
        self._server.start()

    def connect(self) -> None:
        self._client.connect(self._next)

    def publish(self) -> None:
        slot = self._slots[(self._version + 1) % SLOTS]
        for place, values in zip(_pieces(slot), _pieces(self._flat), strict=True):
            np.copyto(place.numpy(), values.numpy())
            if not is_finite(values):
                raise BenchmarkError("bare ZeroMQ: the model is not finite")
        self._version += 1

    def fetch_and_merge(self) -> None:
        places = _pieces(self._received)
        for index in range(min(CREDIT_CHUNKS, len(places))):
            self._client.send(NUMBER.pack(index))
        for index, place in enumerate(places):
            header, piece = self._client.recv_multipart(copy=False)
            if index + CREDIT_CHUNKS < len(places):
                self._client.send(NUMBER.pack(index + CREDIT_CHUNKS))
            if checksum(piece.buffer) != NUMBER.unpack(header.buffer)[0]:
                raise BenchmarkError("bare ZeroMQ: a piece was corrupted")
            np.copyto(place.numpy(), np.frombuffer(piece.buffer, np.float32))
        self._flat.lerp_(self._received, MERGE_FACTOR)

    def round(self) -> None:
        self.publish()
        self.fetch_and_merge()

    def close(self) -> None:
        self._client.close(0)
        self._context.term()  # end the wait of the server's thread
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
                index = NUMBER.unpack(request)[0]
                if index == 0:
                    pieces = slots[self._version % SLOTS]
                piece = pieces[index]
                listener.send(sender, zmq.SNDMORE)
                listener.send(NUMBER.pack(checksum(piece)), zmq.SNDMORE)
                listener.send(piece, copy=False)


def _pieces(flat: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(flat, CHUNK_BYTES // flat.element_size())


def _endpoint(address: tuple[str, int]) -> str:
    host, port = address
    return f"tcp://{host}:{port}"
