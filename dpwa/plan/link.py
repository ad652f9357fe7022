"""Measures the link between two machines. Snapshots are streamed over the link, as in training.

One machine serves random bytes like a node. The other machine asks for a few bytes, to measure the
time of an answer, and then for so many bytes that their stream takes most of a second.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import zmq

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config.endpoints import split_tcp
from dpwa.connection import DpwaConnection
from dpwa.data.array_model import array_layout
from dpwa.data.layout import Layout, Piece
from dpwa.errors import PeerError, UserError
from dpwa.node.query import query_status
from dpwa.node.serving.upload import BYTES_PER_MBIT
from dpwa.runtime import SYSTEM
from dpwa.transport.addresses import all_resolved
from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire import limits
from dpwa.wire.fetching import FetchSession, Greeting
from dpwa.wire.messages import GoAway, SnapshotHeader, decode
from dpwa.wire.shards import Shard

SERVER = "dpwa-bench-link"  # name of the serving node
SNAPSHOT_BYTES = 32 * limits.CHUNK_BYTES
LATENCIES = 15
STREAMS = 5
MIN_STREAM_S = 0.5
FIRST_BYTES = 128 * 1024
FIRST_CHUNK_BYTES = 64 * 1024
CONNECT_S = 5.0
POLL_MS = 100
LISTENING_EVERY_S = 0.1
NO_ANSWER = "Is `dpwa bench link --serve` running there, and is the port open?"


@dataclass(frozen=True)
class LinkMeasurement:
    address: str  # of the serving machine
    latencies_ms: tuple[float, ...]  # time from a request to the header of the answer
    # payload of each stream over its seconds after the header, in 10^6 bits
    bandwidths_mbps: tuple[float, ...]
    stream_bytes: int  # payload of each stream

    @property
    def latency_ms(self) -> float:
        """The median latency in milliseconds."""
        return statistics.median(self.latencies_ms)

    @property
    def bandwidth_mbps(self) -> float:
        """The median bandwidth in 10^6 bits per second."""
        return statistics.median(self.bandwidths_mbps)


@contextmanager
def serving(port: int, bind: str = "*") -> Iterator[None]:
    """Serve random bytes, so that peers can measure the link. `bind` `*` means all addresses."""
    node = {"name": SERVER, "host": "localhost", "bind": bind, "port": port}
    config = {"nodes": [node], "transport": "tcp", "guard": "off", "log_level": "error"}
    with DpwaConnection(SERVER, config) as connection:
        connection.update_send(np.frombuffer(os.urandom(SNAPSHOT_BYTES), np.uint8))
        yield


def measure_link(endpoint: str, seconds: float) -> LinkMeasurement:
    """Measure the link from the machine at `endpoint` to this machine, for about `seconds`.

    Raises `UserError` if a training node answers, and `PeerError` if there is no answer in
    time.
    """
    address = all_resolved(endpoint)[0]
    _require_server(endpoint, address)
    clock = SystemClock()
    with SYSTEM.zmq_context() as zmq_context:
        client = _Client(zmq_context, address, clock)
        try:
            client.connect(Deadline(clock, CONNECT_S))
            return _measured(client, endpoint, Deadline(clock, seconds))
        finally:
            client.close()


def _require_server(endpoint: str, address: str) -> None:
    host, port = split_tcp(endpoint) or ("", 0)
    answer = query_status({SERVER: address}, CONNECT_S)[SERVER]
    if answer.report is None:
        raise PeerError(f"{host}:{port}: {answer.problem}. {NO_ANSWER}")
    if answer.report.name != SERVER:
        name = answer.report.name[: limits.MAX_NAME_CHARACTERS]
        raise UserError(
            f"{host}:{port}: the node {name!r} of a training uses this port. Give the port of "
            "`dpwa bench link --serve` [DPWA-E277]"
        )


def _measured(client: _Client, endpoint: str, deadline: Deadline) -> LinkMeasurement:
    small = Shard(limits.MIN_CHUNK_BYTES, 0, 1)
    latencies = [client.fetch(small, deadline)[0] for _ in range(LATENCIES)]
    nbytes = FIRST_BYTES
    while True:
        _, seconds = client.fetch(_shard(nbytes), deadline)
        if nbytes == SNAPSHOT_BYTES or seconds >= MIN_STREAM_S:
            break
        nbytes = min(2 * nbytes, SNAPSHOT_BYTES)
    streams = [seconds]
    while len(streams) < STREAMS and deadline.remaining_s() > 2 * max(streams):
        streams.append(client.fetch(_shard(nbytes), deadline)[1])
    return LinkMeasurement(
        endpoint.removeprefix("tcp://"),
        tuple(1000 * seconds for seconds in latencies),
        tuple(nbytes / seconds / BYTES_PER_MBIT for seconds in streams),
        nbytes,
    )


def _shard(nbytes: int) -> Shard:
    """Return a shard with the first `nbytes` of the snapshot, in chunks as large as in training."""
    chunk_bytes = min(max(nbytes // 4, FIRST_CHUNK_BYTES), limits.CHUNK_BYTES)
    return Shard(chunk_bytes, 0, nbytes // chunk_bytes)


class _Client:
    def __init__(self, zmq_context: zmq.Context[zmq.Socket[bytes]], endpoint: str, clock: Clock):
        self._link = PeerLink(zmq_context, SERVER, endpoint)
        self._clock = clock
        self._numbers = itertools.count(1)
        self._greeting = Greeting(name=f"link-{os.getpid()}")
        self._layout: Layout = array_layout(np.empty(SNAPSHOT_BYTES, np.uint8))
        self._poller = zmq.Poller()
        self._poller.register(self._link.socket, zmq.POLLIN)
        self._poller.register(self._link.monitor, zmq.POLLIN)

    def connect(self, deadline: Deadline) -> None:
        while self._link.state is not LinkState.UP:
            self._wait(deadline, f"there is no connection. {NO_ANSWER}")

    def fetch(self, shard: Shard, deadline: Deadline) -> tuple[float, float]:
        """Fetch a shard. Return the seconds to the header, and from the header to the last byte."""
        number = next(self._numbers)
        session = FetchSession(number, self._layout, self._greeting, shard=shard)
        asked = self._clock.now()
        self._link.send_request(session.request_message(int(deadline.remaining_s() * 1000) + 1))
        while True:
            frames = self._link.receive()
            if frames is None:
                self._wait(deadline, "the link is too slow to measure. Increase --seconds")
                continue
            message, payload = decode(frames)
            if isinstance(message, GoAway):
                continue
            event = session.receive(message, payload)
            if isinstance(event, SnapshotHeader):
                announced = self._clock.now()
            elif isinstance(event, Piece):
                if session.is_complete:
                    return announced - asked, self._clock.now() - announced
                if (credit := session.credit()) is not None:
                    self._link.send_request(credit)
            else:
                raise PeerError(f"{self._link.endpoint}: the machine refused a fetch ({event})")

    def close(self) -> None:
        self._link.close()

    def _wait(self, deadline: Deadline, problem: str) -> None:
        """Wait for a message. Raise `PeerError` if the connection is lost or the time is over.

        `problem` describes the end of the time.
        """
        self._poller.poll(min(POLL_MS, int(deadline.remaining_s() * 1000) + 1))
        self._link.update()
        if self._link.state is LinkState.DOWN:
            raise PeerError(f"{self._link.endpoint}: {self._link.problem}. {NO_ANSWER}")
        if deadline.expired():
            raise PeerError(f"{self._link.endpoint}: {problem}")


def wait_seconds(seconds: float) -> None:
    """Wait for this number of seconds, or until the user presses Ctrl-C."""
    deadline = Deadline(SystemClock(), seconds)
    while not deadline.expired():
        time.sleep(min(LISTENING_EVERY_S, deadline.remaining_s()))
