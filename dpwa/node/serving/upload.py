"""Upload: how fast a node sends payloads, shared fairly by all that are served."""

from __future__ import annotations

import threading

import numpy as np

from dpwa.clock import Clock
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Lease, Snapshot
from dpwa.node.serving.service import Reply
from dpwa.policy.rates import FairBucket, TokenBucket
from dpwa.transport.sockets import Receipt
from dpwa.types import Frame
from dpwa.wire.messages import Message

BYTES_PER_MBIT = 125_000
BURST_S = 0.1  # of the rate: longer than a service that is blocked waits to try again


class Upload:
    """The upload of one node. Belongs to the RxThread."""

    def __init__(self, limit_mbps: float | None, clock: Clock) -> None:
        self._clock = clock
        self._bucket: FairBucket | None = None
        if limit_mbps is not None:
            rate = limit_mbps * BYTES_PER_MBIT
            self._bucket = FairBucket(TokenBucket(rate, rate * BURST_S))

    def shared(self, reader: str, reply: Reply) -> Reply:
        """Return a reply that takes a lent payload only when it is this reader's turn.

        Otherwise it returns `None`, as when the socket is full: try again with the next tick, until
        the reader is forgotten. Messages without a lent payload always pass.
        """
        bucket, clock = self._bucket, self._clock
        if bucket is None:
            return reply

        def reply_in_turn(
            message: Message, payload: Frame | None = None, *, is_lent: bool = False
        ) -> Receipt | None:
            nbytes = 0 if payload is None or not is_lent else len(payload)
            if nbytes and not bucket.claim(reader, nbytes, clock.now()):
                return None
            receipt = reply(message, payload, is_lent=is_lent)
            if receipt is None:
                bucket.give_back(nbytes)
            return receipt

        return reply_in_turn

    def forget(self, reader: str) -> None:
        """Let nobody wait for a reader that is sent nothing any more."""
        if self._bucket is not None:
            self._bucket.forget(reader)


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
        return sum(copy.snapshot.data.nbytes for copy in tuple(self._copies.values()))

    def keep(self, origin: str, snapshot: Snapshot) -> None:
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
