"""The accept limiter of a node: how many connections it lets in within a second.

Every handshake costs ZeroMQ's own thread time, with keys a quarter of a millisecond of public-key
arithmetic, and it accepts whoever comes. So when too many have come, the listening socket gets a
filter that drops whatever arrives for it, and TCP asks again a second later. Connections that are
up are not affected. Only of TCP: who may open the file of an `ipc` endpoint is trusted.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from dpwa.transport.foreign_sockets import copy_of, drop_packets, let_packets_in

AT_ONCE_S = 1.0  # what may come in so many seconds may come at once
CLOSED_S = 0.1  # at least: to open it for one connection each would cost more than it saves


class AcceptLimiter:
    """Closes while more come than may: the generic cell rate algorithm (ITU-T I.371).

    Belongs to one thread.

    Args:
        per_s: connections.

    Attributes:
        closings: how often it was closed.
    """

    def __init__(self, per_s: float) -> None:
        self._interval_s = 1 / per_s
        self._due = 0.0
        self._listener: tuple[int, int] | None = None  # descriptor and inode
        self._is_closed = False
        self.closings = 0

    def belongs_to(self, descriptor: int) -> None:
        """Take note of the socket that listens."""
        with suppress(OSError), copy_of(descriptor) as own:
            if own.family in (socket.AF_INET, socket.AF_INET6):
                self._listener = descriptor, os.fstat(descriptor).st_ino

    def let_in(self, now: float) -> None:
        """Take note of a connection that has come; close if it was one too many."""
        self._due = max(self._due, now) + self._interval_s
        if self._due - now > AT_ONCE_S and not self._is_closed and self._filter(is_closed=True):
            self._is_closed = True
            self.closings += 1

    def look(self, now: float) -> float | None:
        """Open again when it is time to; return the seconds until then, `None`: it is open."""
        if not self._is_closed:
            return None
        wait_s = self._due - now - (AT_ONCE_S - CLOSED_S)
        if wait_s > 0:
            return wait_s
        if self._filter(is_closed=False) or not self._is_there():
            self._is_closed = False
            return None
        return CLOSED_S  # no descriptor was left to do it with

    def _is_there(self) -> bool:
        """Tell whether the socket that listens is there, as far as that can be told."""
        if self._listener is None:
            return False
        descriptor, inode = self._listener
        with suppress(OSError):
            return os.fstat(descriptor).st_ino == inode
        return False

    def _filter(self, *, is_closed: bool) -> bool:
        """Drop what arrives, or do so no more; return whether that could be done."""
        if self._listener is None:
            return False
        with suppress(OSError), copy_of(*self._listener) as own:
            (drop_packets if is_closed else let_packets_in)(own)
            return True
        return False
