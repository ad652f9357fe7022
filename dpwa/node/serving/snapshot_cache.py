"""Copies of other nodes' snapshots that this node keeps, and serves to whoever they are asked from.

So a leader that everybody wants to read sends its snapshot to a few, and those to others: what it
sends does not grow with the number of nodes.
"""

from __future__ import annotations

import threading

import numpy as np

from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Condition, Lease, Snapshot

MOST_ORIGINS = 2  # the leader of the group, and that of all


class _Copy:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.leases = 0


class SnapshotCache:
    """The newest copy of each of a few nodes; memory of copies that nobody reads is used again."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._copies: dict[str, _Copy] = {}
        self._ending: list[tuple[Condition, _Copy]] = []

    @property
    def nbytes(self) -> int:
        """Memory of the copies."""
        return sum(copy.snapshot.data.nbytes for copy in tuple(self._copies.values()))

    def keep(self, origin: str, snapshot: Snapshot) -> None:
        """Copy a snapshot of another node."""
        with self._lock:
            room = self._room(origin, snapshot.data.nbytes)
            if len(self._copies) >= MOST_ORIGINS:
                del self._copies[next(iter(self._copies))]
        np.copyto(room, snapshot.data)
        copy = Snapshot(
            snapshot.version, snapshot.standing, snapshot.layout, room, snapshot.is_finite
        )
        with self._lock:
            self._copies[origin] = _Copy(copy)

    def lease(self, origin: str, version: int) -> Lease | None:
        """Lease the copy of a node's snapshot, if it is of this version or a later one."""
        with self._lock:
            copy = self._copies.get(origin)
            if copy is None or copy.snapshot.version < version:
                return None
            copy.leases += 1
            return Lease(copy.snapshot, lambda once: self._returned(copy, once))

    def _room(self, origin: str, nbytes: int) -> ByteArray:
        """Take the memory of the copy before, unless it is being read."""
        self._end_leases()
        before = self._copies.pop(origin, None)
        if before is None or before.leases or before.snapshot.data.nbytes != nbytes:
            return np.empty(nbytes, np.uint8)
        return before.snapshot.data

    def _returned(self, copy: _Copy, once: Condition) -> None:
        with self._lock:
            self._ending.append((once, copy))
            self._end_leases()

    def _end_leases(self) -> None:
        still_open = []
        for once, copy in self._ending:
            if once():
                copy.leases -= 1
            else:
                still_open.append((once, copy))
        self._ending = still_open
