"""Copies of other nodes' snapshots that this node keeps, and serves to whoever they are asked from.

So a leader that everybody wants to read sends its snapshot to a few, and those to others: what it
sends does not grow with the number of nodes.
"""

from __future__ import annotations

import threading

import numpy as np

from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Lease, Snapshot

MOST_ORIGINS = 2  # the leader of the group, and that of all


class _Copy:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.leases: list[Lease] = []

    @property
    def is_read(self) -> bool:
        return not all(lease.is_over for lease in self.leases)


class SnapshotCache:
    """The newest copy of each of a few nodes; memory of copies that nobody reads is used again."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._copies: dict[str, _Copy] = {}

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
            lease = Lease(copy.snapshot)
            copy.leases = [*(each for each in copy.leases if not each.is_over), lease]
            return lease

    def _room(self, origin: str, nbytes: int) -> ByteArray:
        """Take the memory of the copy before, unless it is being read."""
        before = self._copies.pop(origin, None)
        if before is None or before.is_read or before.snapshot.data.nbytes != nbytes:
            return np.empty(nbytes, np.uint8)
        return before.snapshot.data
