"""Backpressure: what a node does about connections that send more than it reads.

ZeroMQ's own bounded queues cannot be used against strangers: with one that is full, libzmq 4.3.5
ends the process if the connection breaks and a heartbeat is due or waits in its buffer ("Assertion
failed: !_io_error"), and frames of a message that never ends are not counted. So the queues of a
serving socket have no bound, and this looks at the connections themselves. Linux knows how many
bytes each has brought (TCP_INFO), and what of that was not read is in memory. A connection with too
much of it is paused in the kernel: a filter drops its packets, and TCP sends them again later. One
whose message does not end, and the oldest silent ones when there are too many, are cut.

Connections of `ipc` endpoints are counted and cut, but their bytes are not known.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dpwa.config.endpoints import is_wildcard, split_tcp
from dpwa.transport.foreign_sockets import copy_of, drop_packets, let_packets_in

_DESCRIPTORS = "/proc/self/fd"
_TCP_INFO_BYTES, _BYTES_RECEIVED_AT = 136, 128


LEAST_ALLOWED_BYTES = 1024 * 1024  # unread, for each connection, however many there are
FULL_CONNECTIONS = 4  # that may fill all of what they are allowed at once

LOOK_EVERY_S = 0.03
FIND_EVERY_S = 0.5  # even if none is said to have come: whoever says so may be late
QUIET_S = 2.0  # for a connection with too much unread, of which no message comes: it has no end
LOOK_OFTEN_S = 0.01  # while there is something to see
GROWTH_BYTES = 512 * 1024
GREEDY_BYTES = 512 * 1024  # unread at the end: more than a frame that was cut short
MANY_NEW = 8


@dataclass
class ServedConnection:
    """What is known of one connection.

    Attributes:
        number: its file descriptor, which belongs to ZeroMQ.
        inode: to tell it from a later one with the same descriptor.
        received: bytes that had come when last looked at.
        mark: bytes that had come when nothing of it was unread.
        taken: bytes that were read since.
        messages: read of it altogether.
        is_heard: whether a message was read since last looked at.
        quiet_since: from when on nothing complete has come, in seconds of the monotonic clock.
    """

    number: int
    inode: int
    is_tcp: bool
    received: int = 0
    mark: int = 0
    taken: int = 0
    messages: int = 0
    is_heard: bool = False
    is_paused: bool = False
    quiet_since: float = math.inf

    @property
    def unread(self) -> int:
        """Bytes that have come and were not read."""
        return self.received - self.mark - self.taken


class Backpressure:
    """Watches the connections to one listening socket; belongs to the thread that reads it.

    Args:
        endpoint: that is listened on, with its port.
        most_connections: at once; never more than half of what the process may open.
        unread_bytes: of one connection, in memory.

    Attributes:
        over_capacity, unfinished, pauses: connections cut because there were too many or because of
            a message without an end, and how often one was paused.
    """

    def __init__(self, endpoint: str, most_connections: int, unread_bytes: int) -> None:
        address = split_tcp(endpoint)
        self._host = "" if address is None else address[0]
        self._port = None if address is None else address[1]
        self._path = endpoint.removeprefix("ipc://")
        may_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(most_connections, may_open // 2)
        self._unread_bytes = unread_bytes
        self._connections: dict[int, ServedConnection] = {}  # the oldest first
        self._gone: set[int] = set()  # descriptors of greedy connections that have ended
        self._cut_off: dict[int, int] = {}  # of those that ZeroMQ has not closed yet, and inodes
        self._early: dict[int, int] = {}  # bytes that were read before the connection was found
        self._others: dict[int, int] = {}  # descriptors of something else, and their inodes
        self._comings: int | None = None
        self._found_at = -math.inf
        self.over_capacity = self.unfinished = self.pauses = 0

    def took(self, number: int, nbytes: int) -> None:
        """Take note that a message of a connection was read."""
        connection = self._connections.get(number)
        if connection is None:  # it was not looked at yet
            self._early[number] = self._early.get(number, 0) + nbytes
        else:
            connection.taken += nbytes
            connection.messages += 1
            connection.is_heard = True

    def is_gone(self, number: int) -> bool:
        """Tell whether a message is what a connection that was too greedy has left behind."""
        return number in self._gone and not _is_open(number)

    def look(self, *, is_drained: bool, comings: int | None = None) -> float:
        """Look at all connections and act; return after how many seconds to look again.

        Args:
            is_drained: whether every message that is complete was read.
            comings: how many connections have come and gone since the start, as far as ZeroMQ has
                told; while it stays the same, they are found anew now and then only.
        """
        new = 0
        if self._is_to_find(comings):
            try:
                new = self._find()
            except OSError:  # no /proc, or no descriptor left: nothing can be seen just now
                return LOOK_EVERY_S
            self._comings, self._found_at = comings, time.monotonic()
        grown = 0
        for connection in list(self._connections.values()):
            if connection.is_tcp:
                grown = max(grown, self._measure(connection, is_drained=is_drained))
                self._act(connection)
        self._evict()
        is_busy = grown > GROWTH_BYTES or new > MANY_NEW or self._has_paused()
        return LOOK_OFTEN_S if is_busy else LOOK_EVERY_S

    def _is_to_find(self, comings: int | None) -> bool:
        """Tell whether connections may be there that were not found; the list of all costs most."""
        is_same = comings is not None and comings == self._comings
        return not is_same or time.monotonic() - self._found_at >= FIND_EVERY_S

    def _has_paused(self) -> bool:
        return any(connection.is_paused for connection in self._connections.values())

    def _find(self) -> int:
        """Take note of the connections that there are; return how many are new."""
        found: dict[int, int] = {}
        for number, inode in _descriptors():
            found[number] = inode
        for number, connection in list(self._connections.items()):
            if found.get(number) != connection.inode:
                del self._connections[number]
                if connection.unread > GREEDY_BYTES:
                    self._gone.add(number)
        for number, inode in list(self._cut_off.items()):
            if found.get(number) != inode:
                del self._cut_off[number]
                self._gone.add(number)
        self._gone -= found.keys()
        self._early = {number: taken for number, taken in self._early.items() if number in found}
        self._others = {n: i for n, i in self._others.items() if found.get(n) == i}
        unknown = found.keys() - self._connections.keys() - self._others.keys()
        new = 0
        for number in sorted(unknown):
            try:
                is_tcp = self._is_ours(number)
            except OSError:
                continue
            if is_tcp is None:
                self._others[number] = found[number]
            else:
                taken = self._early.pop(number, 0)
                self._connections[number] = ServedConnection(
                    number, found[number], is_tcp, taken=taken
                )
                new += 1
        return new

    def _is_ours(self, number: int) -> bool | None:
        """Tell whether it is a connection to the endpoint, over TCP; `None`: something else.

        Raises:
            OSError: that cannot be told just now.
        """
        with copy_of(number) as own:
            local = own.getsockname()
            if own.type != socket.SOCK_STREAM:
                return None
            if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            if own.family == socket.AF_UNIX:
                return False if self._port is None and local == self._path else None
            is_tcp = own.family in (socket.AF_INET, socket.AF_INET6)
            if not is_tcp or not self._is_here(str(local[0]), local[1]):
                return None
            with suppress(OSError):  # it may have come just as the accept limiter closed
                let_packets_in(own)
            return True

    def _is_here(self, host: str, port: int) -> bool:
        """Tell whether an address is the one that is listened on."""
        is_host = self._host in (host.removeprefix("::ffff:"), host) or is_wildcard(self._host)
        return is_host and port == self._port

    def _measure(self, connection: ServedConnection, *, is_drained: bool) -> int:
        """Bring the figures of a connection up to date; return by how much it has grown."""
        before = connection.received
        connection.received = max(before, _bytes_received(connection))
        if not is_drained:
            connection.quiet_since = math.inf
        elif connection.is_heard:
            connection.mark, connection.taken = connection.received, 0
            connection.quiet_since = math.inf
        elif connection.unread > self._allowed():  # quiet counts from the first look that saw it
            connection.quiet_since = min(connection.quiet_since, time.monotonic())
        connection.is_heard = False
        return connection.received - before

    def _act(self, connection: ServedConnection) -> None:
        allowed = self._allowed()
        is_quiet = time.monotonic() - connection.quiet_since > QUIET_S
        if is_quiet and connection.unread > allowed:
            self.unfinished += 1
            self._cut(connection)
        elif not connection.is_paused and connection.unread > allowed:
            self.pauses += 1
            self._pause(connection)
        elif connection.is_paused and connection.unread <= allowed // 2:
            self._resume(connection)

    def _allowed(self) -> int:
        share = FULL_CONNECTIONS * self._unread_bytes // len(self._connections)
        return min(self._unread_bytes, max(share, LEAST_ALLOWED_BYTES))

    def _evict(self) -> None:
        """Cut what is too much: the oldest that have said nothing, or else the newest."""
        excess = len(self._connections) - self._most
        if excess <= 0:
            return
        silent = [c for c in self._connections.values() if not c.messages]
        newest = [c for c in reversed(self._connections.values()) if c.messages]
        for connection in [*silent, *newest][:excess]:
            self.over_capacity += 1
            self._cut(connection)

    def _pause(self, connection: ServedConnection) -> None:
        with suppress(OSError), copy_of(connection.number, connection.inode) as own:
            connection.is_paused = True
            try:
                drop_packets(own)
            except OSError:  # where that is not allowed
                own.shutdown(socket.SHUT_RDWR)

    def _resume(self, connection: ServedConnection) -> None:
        with suppress(OSError), copy_of(connection.number, connection.inode) as own:
            let_packets_in(own)
            connection.is_paused = False

    def _cut(self, connection: ServedConnection) -> None:
        if connection.is_paused:
            self._resume(connection)  # or the other side would never hear of it
        with suppress(OSError), copy_of(connection.number, connection.inode) as own:
            if not connection.is_tcp or not _reset(own):
                own.shutdown(socket.SHUT_RDWR)
            del self._connections[connection.number]
            # Until ZeroMQ has closed it:
            self._others[connection.number] = self._cut_off[connection.number] = connection.inode


def _descriptors() -> Iterator[tuple[int, int]]:
    """Yield the descriptors of sockets of this process, and their inodes."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        with suppress(OSError):
            found = os.fstat(int(name))
            if stat.S_ISSOCK(found.st_mode):
                yield int(name), found.st_ino


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _bytes_received(connection: ServedConnection) -> int:
    """Return how many bytes a connection has brought, 0 if that cannot be told."""
    # Without a copy of the descriptor, as this is done often: whatever it stands for by now is only
    # asked, and the answer is good if it was the same all the time.
    with suppress(OSError):
        asked = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, connection.number)
        try:
            info = asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        finally:
            asked.detach()
        is_same = os.fstat(connection.number).st_ino == connection.inode
        if is_same and len(info) == _TCP_INFO_BYTES:
            return int(struct.unpack_from("Q", info, _BYTES_RECEIVED_AT)[0])
    return 0


def _reset(own: socket.socket) -> bool:
    """Reset a TCP connection, with all that it holds; return whether that was possible."""
    # To connect to no address is to disconnect, see connect(2). A shutdown would let in what is
    # on its way, and as long as anything comes ZeroMQ goes on.
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    return bool(ctypes.CDLL(None).connect(own.fileno(), nowhere, len(nowhere)) == 0)
