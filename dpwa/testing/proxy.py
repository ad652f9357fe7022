"""A TCP link that can be slow, thin, cut or silent, as a proxy between a node and its peer.

Only the port changes for the two. One listens as usual, the other gets the port of the proxy. No
rights are needed, unlike with `dpwa.testing.namespaces`. Packets are not lost here, because a proxy
forwards a stream of bytes.
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
_CHUNKS_UNDERWAY = 256  # of a connection in one direction: 16 MB of a long thick link
_BUCKET_S = 0.02  # how long a link must have been idle for what it may then send at once
_PATIENCE_S = 5.0
_BACKLOG = 128
_TURNS_TO_CLOSE = 3  # of the loop, until a transport that was aborted has let go of its socket
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, for 0 seconds

_Queue = asyncio.Queue[tuple[float, bytes]]


@dataclass(frozen=True)
class ProxyCounts:
    """The traffic of a proxy so far.

    Attributes:
        connections: accepted since the start.
        open_connections: of them, still open.
        bytes_to_target: forwarded to the target.
        bytes_from_target: forwarded from the target.
    """

    connections: int
    open_connections: int
    bytes_to_target: int
    bytes_from_target: int


class TcpProxy(Closeable):
    """Listens on a free port of this machine and forwards every connection to a target.

    All connections share one link. In each direction, every byte is forwarded `delay_s` after its
    arrival, and each chunk of bytes up to `jitter_s` later than that (uniformly at random), but
    never before the bytes ahead of it. The three settings are attributes that may be changed at any
    time. Chunks already on their way keep their delay. Connecting itself is not delayed, because
    the kernel accepts at once.

    Args:
        target_host: the host of the target, looked up again for each connection.
        target_port: its port.
        delay_s: one way, at least 0. A round trip takes twice as long.
        jitter_s: at least 0.
        bandwidth_bytes_per_s: of each direction, by a token bucket that holds 20 ms of it. `None`
            for no limit.
        seed: of the jitter.

    Attributes:
        host: 127.0.0.1.
        port: where the proxy listens.

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
        # Outside the range of outgoing connections: a client that tries again and again while the
        # proxy refuses would sooner or later be given the very port, and be connected to itself.
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
        """Reset all connections and refuse new ones, until `heal` or `stall`.

        Bytes on their way are lost.
        """
        self._do(self._cut())

    def stall(self) -> None:
        """Become a black hole: connections stay and are accepted, but no byte moves until `heal`.

        Nothing is lost, because held bytes move on then.
        """
        self._do(self._stall())

    def heal(self) -> None:
        """Hand on everything again."""
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
        """Reset all connections and end. Further calls have no effect."""
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the proxy's thread do something, and wait until it is done."""
        if self._loop.is_closed():
            work.close()
            raise ClosedError("this proxy is closed [DPWA-E205]")
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    # All below runs on the proxy's thread.

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            # Not a server of asyncio's: what that has accepted is out of sight for a while, and
            # would be left behind by whoever ends the loop just then.
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
            _reset(accepted)  # of a handler that was cancelled before it had begun, too

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
        except OSError:  # who wanted to connect has given up
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
        except (OSError, asyncio.CancelledError):  # cancelled when cut
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
        writer.transport.set_write_buffer_limits(0)  # `drain` waits for the kernel to have it all
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
            direction.bytes += len(chunk)  # before anybody has them, who may look at once
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
        """Return when the last of some bytes has entered the link."""
        if bytes_per_s is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - _BUCKET_S) + count / bytes_per_s
        await asyncio.sleep(self._free_at - now)


async def _all_or_none(*work: Coroutine[Any, Any, None]) -> None:
    """Run all parts at once to their end. If one fails, cancel the others."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(connection: Any) -> None:
    """Have both the rest of a connection's bytes and the connection itself vanish at once."""
    with suppress(OSError):  # it may be closed already
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
