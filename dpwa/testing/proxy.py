"""A TCP proxy between a node and a peer. The proxy can delay bytes, stay silent or disconnect.

The peer listens on its port as usual. The node gets the port of the proxy instead of the peer's
port. Unlike `dpwa.testing.namespaces`, a proxy needs no root rights. A proxy forwards a stream of
bytes, so it cannot lose single packets.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpwa.errors import ClosedError, UserError
from dpwa.launch.ports import free_ports
from dpwa.lifecycle import Closeable

HOST = "127.0.0.1"

_CHUNK_BYTES = 64 * 1024
_CHUNKS_UNDERWAY = 256  # maximum for a connection in one direction, which is 16 MB
_BUCKET_S = 0.02  # after a pause, a link sends the bytes of this time without a limit
_PATIENCE_S = 5.0
_BACKLOG = 128
_TURNS_TO_CLOSE = 3  # an aborted transport closes its socket within 3 iterations of the event loop
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # a struct linger that is on, for 0 seconds

_Queue = asyncio.Queue[tuple[float, bytes]]


@dataclass(frozen=True)
class ProxyCounts:
    """The traffic of a proxy so far.

    Attributes:
        connections: the number of connections that the proxy has accepted since its start.
        open_connections: the number of these connections that are open.
        bytes_to_target: the number of bytes forwarded to the target.
        bytes_from_target: the number of bytes forwarded from the target.
    """

    connections: int
    open_connections: int
    bytes_to_target: int
    bytes_from_target: int


class TcpProxy(Closeable):
    """Listens on a free port of this machine and forwards every connection to a target.

    All connections share one link. In each direction, the proxy forwards bytes in their order, and
    each chunk of bytes after `delay_s` plus a random time up to `jitter_s` (uniform). You can
    change the attributes `delay_s`, `jitter_s` and `bandwidth_bytes_per_s` at any time. Chunks that
    the proxy has received before keep their delay. The proxy does not delay the opening of a
    connection, because the kernel accepts connections at once.

    Args:
        target_host: the host of the target. The proxy looks up the name again for each connection.
        target_port: the port of the target.
        delay_s: the delay in each direction, at least 0. A round trip takes twice as long.
        jitter_s: the maximum additional delay, at least 0.
        bandwidth_bytes_per_s: the bandwidth in each direction, limited by a token bucket of 20 ms.
            `None` means no limit.
        seed: the seed of the jitter.

    Attributes:
        host: 127.0.0.1.
        port: the port on which the proxy listens.

    Raises:
        UserError: a setting is out of its range.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        bandwidth_bytes_per_s: float | None = None,
        seed: int = 0,
    ) -> None:
        _require_in_range(delay_s, jitter_s, bandwidth_bytes_per_s)
        self.target = target_host, target_port
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.host = HOST
        # Use a port outside the range of outgoing connections. Otherwise, while the proxy refuses,
        # a client that retries can get this port as its own, and connect to itself.
        self.port = free_ports(1, HOST)[0]
        self._rng = random.Random(seed)
        self._to_target, self._from_target = _Direction(), _Direction()
        self._connections = 0
        self._handlers: dict[asyncio.Task[None], socket.socket] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"dpwa-proxy-{self.port}", daemon=True
        )
        self._flowing = asyncio.Event()
        self._thread.start()
        try:
            self.heal()
        except OSError:
            self.close()
            raise

    def cut(self) -> None:
        """Reset all connections and refuse new connections, until `heal` or `stall`.

        Bytes that the proxy has not forwarded yet are lost.
        """
        self._do(self._cut())

    def stall(self) -> None:
        """Keep and accept connections, but forward no bytes until `heal` (a black hole).

        No bytes are lost, because `heal` forwards them.
        """
        self._do(self._stall())

    def heal(self) -> None:
        """Accept connections and forward bytes again."""
        self._do(self._heal())

    @property
    def counts(self) -> ProxyCounts:
        """The traffic so far."""
        return ProxyCounts(
            self._connections,
            len(self._handlers),
            self._to_target.bytes,
            self._from_target.bytes,
        )

    def close(self) -> None:
        """Reset all connections and stop the proxy. Further calls have no effect."""
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the proxy's thread, and wait until it has ended."""
        if self._loop.is_closed():
            work.close()
            raise ClosedError("this proxy is closed [DPWA-E205]")
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    # All methods below run on the proxy's thread.

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            # Not a server of asyncio, because it hides a new connection for a moment. If the loop
            # ended at this moment, the connection would stay open.
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        self._flowing.set()
        handlers = dict(self._handlers)
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)
        for accepted in handlers.values():
            _reset(accepted)  # in case its handler was cancelled before it started

    async def _end(self) -> None:
        await self._cut()
        await self._loop.shutdown_default_executor()

    async def _stall(self) -> None:
        self._flowing.clear()
        await self._listen()

    async def _heal(self) -> None:
        self._flowing.set()
        await self._listen()

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:  # the client has given up
            return
        self._connections += 1
        accepted.setblocking(False)
        handler = self._loop.create_task(self._hand_on(accepted))
        self._handlers[handler] = accepted
        handler.add_done_callback(self._handlers.pop)

    async def _hand_on(self, accepted: socket.socket) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            await self._flowing.wait()
            reader, writer = await asyncio.open_connection(sock=accepted)
            writers.append(writer)
            from_target, to_target = await asyncio.open_connection(*self.target)
            writers.append(to_target)
            await _all_or_none(
                *self._pipe(reader, to_target, self._to_target),
                *self._pipe(from_target, writer, self._from_target),
            )
            for each in writers:
                each.close()
        except (OSError, asyncio.CancelledError):  # `cut` cancels this
            for each in writers:
                _reset(each.get_extra_info("socket"))
                each.transport.abort()
            if not writers:
                _reset(accepted)

    def _pipe(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: _Direction,
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        underway: _Queue = asyncio.Queue(_CHUNKS_UNDERWAY)
        writer.transport.set_write_buffer_limits(0)  # so `drain` empties it
        return self._take(reader, underway, direction), self._give(underway, writer, direction)

    async def _take(
        self, reader: asyncio.StreamReader, underway: _Queue, direction: _Direction
    ) -> None:
        due, chunk = 0.0, None
        while chunk != b"":
            await self._flowing.wait()
            chunk = await reader.read(self._chunk_bytes())
            await direction.pass_through(len(chunk), self.bandwidth_bytes_per_s)
            delay_s = self.delay_s + self._rng.uniform(0.0, self.jitter_s)
            due = max(due, self._loop.time() + delay_s)
            await self._flowing.wait()
            await underway.put((due, chunk))

    async def _give(
        self, underway: _Queue, writer: asyncio.StreamWriter, direction: _Direction
    ) -> None:
        while True:
            due, chunk = await underway.get()
            await asyncio.sleep(due - self._loop.time())
            await self._flowing.wait()
            if not chunk:
                writer.write_eof()
                return
            direction.bytes += len(chunk)  # first, because a receiver may read `counts` at once
            writer.write(chunk)
            await writer.drain()

    def _chunk_bytes(self) -> int:
        if self.bandwidth_bytes_per_s is None:
            return _CHUNK_BYTES
        return max(1, min(_CHUNK_BYTES, int(self.bandwidth_bytes_per_s * _BUCKET_S)))


class _Direction:
    """One direction of the link, shared by all connections."""

    def __init__(self) -> None:
        self.bytes = 0
        self._free_at = 0.0

    async def pass_through(self, count: int, bytes_per_s: float | None) -> None:
        """Wait until the link has accepted `count` bytes."""
        if bytes_per_s is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - _BUCKET_S) + count / bytes_per_s
        await asyncio.sleep(self._free_at - now)


async def _all_or_none(*work: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines at the same time until they end. If one fails, cancel the others."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(connection: Any) -> None:
    """Close a connection at once, and discard its remaining bytes."""
    with suppress(OSError):  # if it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    if isinstance(connection, socket.socket):
        connection.close()


def _require_in_range(delay_s: float, jitter_s: float, bandwidth: float | None) -> None:
    for name, value in (("delay_s", delay_s), ("jitter_s", jitter_s)):
        if value < 0.0:
            raise UserError(f"{name} is {value}, but must be at least 0 [DPWA-E202]")
    if bandwidth is not None and bandwidth <= 0.0:
        raise UserError(
            f"bandwidth_bytes_per_s is {bandwidth}, but must be above 0, or None for no limit"
            " [DPWA-E201]"
        )
