"""Snapshots that readers lease. Publishing never waits for a reader, and no reader sees a torn one.

Publishing writes into a slot without readers and makes it the newest. Reading leases the newest
slot, which keeps the publisher from writing to it until the lease is released. A reader loses a
slot if it keeps the slot for longer than `lease_s` after a newer snapshot arrived. Then the slot
gets new memory, and the old memory stays unchanged until the reader releases it. If readers hold
every slot, the publisher skips the round and counts it, and the trainer continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from dpwa.clock import Clock
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray, Segment, SegmentHeader, SharedSegment
from dpwa.data.shared_memory import SharedMemory
from dpwa.errors import UserError
from dpwa.lifecycle import Closeable, uninterrupted
from dpwa.types import JsonObject, TrainingProgress

log = logging.getLogger("dpwa.data")

Condition = Callable[[], bool]


@dataclass(frozen=True)
class MergeTerms:
    """The factors for a merge of a peer's snapshot, and this node's own snapshot if it is used."""

    factor: float  # the weight f of the peer, from 0 to 1
    # The bytes of this node's snapshot, shape `(nbytes,)`. With them, parameters become
    # own + f * (peer - d * published - (1 - d) * own). With `None`, parameters are interpolated.
    published: ByteArray | None = None
    buffers: float | None = None  # the weight of the peer's buffers, or `None` to use `factor`
    delta: float = 1.0  # d, from 0 to 1


@dataclass(frozen=True)
class Snapshot:
    version: int  # 1 for a node's first snapshot, and 1 more for each later snapshot
    progress: TrainingProgress  # the clock and loss at that moment
    layout: Layout
    data: ByteArray  # the bytes, shape `(nbytes,)`, which readers must not change
    is_finite: bool | None = None  # `None` if the publisher has not checked
    # for each piece that was sent without a codec, its first byte and its checksum
    checksums: dict[int, int] = field(default_factory=dict, compare=False)


class SnapshotCopy(Protocol):
    """A running copy of parameters into a slot, such as an asynchronous copy from a GPU."""

    def is_ready(self) -> bool:
        """Return, without waiting, whether all copies into the slot are complete."""
        ...

    def wait_complete(self) -> bool | None:
        """Wait for the copies. Return whether all values are finite, or `None` if not checked."""
        ...


@dataclass(frozen=True)
class FinishedCopy:
    """A copy of parameters that was complete from the beginning."""

    is_finite: bool | None

    def is_ready(self) -> bool:
        return True

    def wait_complete(self) -> bool | None:
        return self.is_finite


def _now() -> bool:
    return True


class Lease:
    """The right to read one snapshot. Release it, or leave its `with` block, after reading."""

    def __init__(
        self, snapshot: Snapshot, end: Callable[[], None] | None = None, *, is_shared: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.is_shared = is_shared  # whether other processes can map it
        self._end = end
        self._once: Condition | None = None

    @property
    def is_over(self) -> bool:
        """Whether the publisher may write to the memory again."""
        return self._once is not None and self._once()

    def release(self, once: Condition = _now) -> None:
        """End the lease as soon as `once` returns true. Further calls have no effect."""
        if self._once is None:
            self._once = once
        if self._end is not None:
            self._end()  # in every call, because an interrupt may have stopped the last call

    def __enter__(self) -> Snapshot:
        return self.snapshot

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class _Slot:
    """The memory for one snapshot. Nothing writes to the memory while a reader has a lease."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.snapshot: Snapshot | None = None  # `None` while the publisher writes to the slot
        self.superseded_at = 0.0
        self._leases: list[Lease] = []

    @property
    def leases(self) -> list[Lease]:
        return [lease for lease in self._leases if not lease.is_over]

    def lease(self, snapshot: Snapshot, *, is_shared: bool) -> Lease:
        lease = Lease(snapshot, is_shared=is_shared)
        self._leases = [*self.leases, lease]
        return lease

    def try_claim(self) -> bool:
        if self.leases or not self.segment.try_claim():
            return False
        self.snapshot = None
        return True


class SnapshotPool(Closeable):
    """A bounded set of slots, shared by one publisher and any number of readers.

    The only mark of a slot that is being written is that it has no snapshot. So if an interrupt
    stops the publisher, nothing stays locked, and the next call uses the same slot. There must be
    at least 2 slots. With 3 slots, one can be the newest, one read and one written. Memory is
    allocated when it is first needed. `shared` is a folder of slots that other processes can map,
    and `None` means private memory.
    """

    def __init__(
        self,
        clock: Clock,
        lease_s: float,
        slots: int,
        shared: SharedMemory | None = None,
    ) -> None:
        if slots < 2:
            raise ValueError(f"a pool needs at least 2 slots (to read and to write), not {slots}")
        self._clock = clock
        self._lease_s = lease_s
        self.most_slots = slots  # the maximum number of slots, without those in `_lost`
        self.shared = shared  # the folder that other processes can map, or `None`
        # Reentrant, because a signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self._slots: list[_Slot] = []
        self._lost: list[_Slot] = []  # the slots that readers have kept for more than `lease_s`
        self._newest: _Slot | None = None
        # the slot that becomes the newest when its copy is complete
        self._pending: tuple[_Slot, Snapshot, SnapshotCopy] | None = None
        self.is_finite: bool | None = None
        self.version = 0  # the version of the newest snapshot, or 0 before the first one
        self.skipped = 0  # the number of snapshots that the publisher skipped for lack of a slot
        self._was_short = False  # whether the warning of too little memory was logged
        self._is_closed = False

    def publish_snapshot(
        self,
        layout: Layout,
        nbytes: int,
        progress: TrainingProgress,
        write: Callable[[ByteArray], SnapshotCopy],
    ) -> Snapshot | None:
        """Publish the snapshot that the function `write` puts into a free slot of `nbytes` bytes.

        Returns the snapshot. It is complete after `settle`, and does not change until the next
        snapshot is published. Returns `None`, and skips the round, if every slot is being read or
        the last snapshot is not complete. If `write` raises an error, no snapshot is published, and
        this method raises the error.
        """
        slot = self._claim(nbytes)
        if slot is None:
            self.skipped += 1
            return None
        copy = write(slot.segment.data)
        with self._lock:
            snapshot = Snapshot(self.version + 1, progress, layout, slot.segment.data)
            self._pending = slot, snapshot, copy
            self._commit_if_ready()
        return snapshot

    def resume(self, version: int) -> None:
        """Give the next snapshot the version `version + 1`, or a higher version."""
        with self._lock:
            self.version = max(self.version, version)

    def settle(self) -> None:
        if self._pending is None:  # there is no copy to wait for
            return
        with self._lock:
            self._commit()

    def commit(self) -> None:
        """Offer the last published snapshot to readers as the newest if its copy is complete."""
        with self._lock:
            self._commit_if_ready()

    def newest(self) -> Lease | None:
        """Lease the newest complete snapshot, or return `None` if there is none yet."""
        with self._lock:
            self._commit_if_ready()
            return None if self._newest is None else self._lease(self._newest)

    def at(self, version: int) -> Lease | None:
        """Lease the snapshot of this version, or return `None` if no slot holds it any more."""
        with self._lock:
            self._commit_if_ready()
            for slot in self._slots:
                if slot.snapshot is not None and slot.snapshot.version == version:
                    return self._lease(slot)
        return None

    def layout(self) -> Layout | None:
        """Return the layout of the newest snapshot, or `None` if there is none yet."""
        with self._lock:  # without a lease, which an interrupt would leave open
            self._commit_if_ready()
            snapshot = None if self._newest is None else self._newest.snapshot
            return None if snapshot is None else snapshot.layout

    def report(self) -> JsonObject:
        """Return the number and bytes of all slots, and of slots that slow readers have kept."""
        with self._lock:
            return {
                "slots": len(self._slots),
                "slot_bytes": sum(slot.segment.data.nbytes for slot in self._slots),
                "lost_slots": len(self._lost),
                "lost_bytes": sum(slot.segment.data.nbytes for slot in self._lost),
                "is_shared": self.shared is not None,
            }

    def close(self) -> None:
        """Remove the shared memory. Snapshots that are being read stay until they are released."""
        with self._lock:
            self._is_closed = True
            try:
                if self._pending is not None:
                    self._pending[2].wait_complete()  # a device must not write to freed memory
            finally:
                for slot in (*self._slots, *self._lost):
                    slot.segment.close()
                if self.shared is not None:
                    self.shared.close()

    def _claim(self, nbytes: int) -> _Slot | None:
        """Reserve a slot to write to. It is never the newest slot."""
        with self._lock:
            if self._is_closed:
                return None
            self._commit_if_ready()
            if self._pending is not None:
                return None
            if self._lost:
                self._forget_lost()
            for slot in self._slots:
                fits = slot is not self._newest and slot.segment.data.nbytes == nbytes
                if fits and slot.try_claim():
                    return slot
            with uninterrupted():
                return self._make(nbytes)

    def _make(self, nbytes: int) -> _Slot | None:
        """Create a slot of `nbytes` bytes if the slot limit allows. Free slots of other sizes."""
        for slot in [s for s in self._slots if s is not self._newest]:
            if slot.segment.data.nbytes != nbytes and slot.try_claim():
                slot.segment.close()  # because the model had a different size before
                self._slots.remove(slot)
        is_full = len(self._slots) >= self.most_slots and not self._lose_one()
        if is_full or self._is_closed:  # a signal handler may have closed the pool just now
            return None
        try:
            slot = _Slot(self._allocate(nbytes))
        except MemoryError:
            self._short_of_memory(nbytes)
            return None
        slot.try_claim()
        self._slots.append(slot)
        return slot

    def _short_of_memory(self, nbytes: int) -> None:
        """Log that a snapshot is skipped. Raise `UserError` if it would have been the first."""
        text = f"there is too little memory for a snapshot of {nbytes} bytes"
        if self._newest is None:
            raise UserError(f"{text}. A node needs memory for two snapshots [DPWA-E312]") from None
        if not self._was_short:
            self._was_short = True
            log.warning("%s, so peers read the previous snapshot [DPWA-W092]", text)

    def _lose_one(self) -> bool:
        """Move a slot to `_lost` if its readers keep their leases for too long."""
        if len(self._lost) >= self.most_slots:
            return False
        end = self._clock.now() - self._lease_s
        for slot in self._slots:
            if slot is not self._newest and slot.superseded_at <= end:
                self._slots.remove(slot)
                self._lost.append(slot)
                return True
        return False

    def _forget_lost(self) -> None:
        with uninterrupted():
            for slot in [slot for slot in self._lost if slot.try_claim()]:
                slot.segment.close()
                self._lost.remove(slot)

    def _allocate(self, nbytes: int) -> Segment:
        if self.shared is None:
            return Segment(nbytes)
        try:
            return self.shared.allocate(nbytes)
        except OSError as error:
            log.warning(
                "there is too little shared memory for %d bytes (%s), so peers can only get "
                "snapshots as a stream [DPWA-W021]",
                nbytes,
                error.strerror,
            )
            self.shared.close()
            self.shared = None
            return Segment(nbytes)

    def _commit_if_ready(self) -> None:
        if self._pending is not None and self._pending[2].is_ready():
            self._commit()

    def _commit(self) -> None:
        """Make the pending snapshot the newest. After an interrupt, the next call does it."""
        if self._pending is None:
            return
        slot, snapshot, copy = self._pending
        try:
            snapshot = replace(snapshot, is_finite=copy.wait_complete())
        except Exception:
            self._pending = None
            raise
        self._describe(slot.segment, snapshot)
        slot.segment.release()
        slot.snapshot = snapshot
        self._supersede(slot)
        self.is_finite = snapshot.is_finite
        self.version = max(self.version, snapshot.version)
        self._pending = None

    def _describe(self, segment: Segment, snapshot: Snapshot) -> None:
        if self.shared is not None:
            segment.describe(
                SegmentHeader(
                    nonce=self.shared.nonce,
                    fingerprint=snapshot.layout.fingerprint,
                    version=snapshot.version,
                    progress=snapshot.progress,
                    is_finite=snapshot.is_finite,
                    nbytes=snapshot.data.nbytes,
                )
            )

    def _supersede(self, slot: _Slot) -> None:
        if self._newest is not None:
            self._newest.superseded_at = self._clock.now()
        self._newest = slot
        if self.shared is not None and isinstance(slot.segment, SharedSegment):
            self.shared.announce(slot.segment)

    def _lease(self, slot: _Slot) -> Lease:
        snapshot = slot.snapshot
        if snapshot is None:  # only a slot that is being written has none, and it is never leased
            raise AssertionError("a slot without a snapshot was leased")
        return slot.lease(snapshot, is_shared=self.shared is not None and slot.segment.is_shared)
