"""Leased snapshots. Publishing never waits for a reader, and no reader sees a torn snapshot.

Publishing writes into a slot without readers and makes it the newest. Reading leases the newest
slot, which keeps it from being written until the lease is released. A reader that keeps a slot for
longer than `lease_s` after a newer one arrived loses it. The slot then gets other memory, and the
old memory stays unchanged until that reader is done. If readers hold every slot, the round is
skipped and counted, and the trainer continues.
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
    """The terms of a merge of a peer's snapshot."""

    factor: float  # weight f of the peer, from 0 to 1
    # bytes of this node's snapshot, shape `(nbytes,)`: parameters become own + f * (peer - d *
    # published - (1 - d) * own); `None`: they are interpolated
    published: ByteArray | None = None
    buffers: float | None = None  # weight of the peer's buffers; `None`: as for the parameters
    delta: float = 1.0  # d, from 0 to 1


@dataclass(frozen=True)
class Snapshot:
    version: int  # 1 for the first that a node publishes, then rising by 1; never interpolated
    progress: TrainingProgress  # clock and loss at that moment
    layout: Layout
    data: ByteArray  # the bytes, shape `(nbytes,)`; read-only by agreement
    is_finite: bool | None = None  # `None` when the publisher has not checked
    # of the pieces that readers were sent as they are, by where they begin
    checksums: dict[int, int] = field(default_factory=dict, compare=False)


class SnapshotCopy(Protocol):
    """Parameters on their way into a slot, from a device that needs no help with it."""

    def is_ready(self) -> bool:
        """Return whether all copies are complete, without waiting."""
        ...

    def wait_complete(self) -> bool | None:
        """Wait for the copies. Return whether all values are finite, or `None` if not checked."""
        ...


@dataclass(frozen=True)
class FinishedCopy:
    """Parameters that are there already."""

    is_finite: bool | None

    def is_ready(self) -> bool:
        return True

    def wait_complete(self) -> bool | None:
        return self.is_finite


def _now() -> bool:
    return True


class Lease:
    """The right to read one snapshot. Release it (or leave its `with` block) when done."""

    def __init__(
        self, snapshot: Snapshot, end: Callable[[], None] | None = None, *, is_shared: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.is_shared = is_shared  # whether other processes can map it
        self._end = end
        self._once: Condition | None = None

    @property
    def is_over(self) -> bool:
        """Whether the memory may be written again."""
        return self._once is not None and self._once()

    def release(self, once: Condition = _now) -> None:
        """Give the slot back as soon as `once` is true. Further calls have no effect."""
        if self._once is None:
            self._once = once
        if self._end is not None:
            self._end()  # again, too: the last time may have been cut short

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
    """A place for one snapshot. Its memory may be exchanged, never written while it is read."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.snapshot: Snapshot | None = None  # none while it is written to
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

    A slot that is being written is only marked by having no snapshot. So a publisher that an
    interrupt has stopped leaves nothing behind, and the next call uses the same slot again. There
    are at least 2 slots (3: the newest, one still being read, and one to write into). Memory is
    allocated when it is needed. `shared`: the folder of the slots, for other processes to map, or
    `None` for private memory.
    """

    def __init__(
        self,
        clock: Clock,
        lease_s: float,
        slots: int,
        shared: SharedMemory | None = None,
    ) -> None:
        if slots < 2:
            raise ValueError(f"a pool needs 2 slots or more, one to read and one to write: {slots}")
        self._clock = clock
        self._lease_s = lease_s
        self.most_slots = slots  # snapshots at once, beside those that were lost to their readers
        self.shared = shared  # the folder that other processes can map, if there is one
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._slots: list[_Slot] = []
        self._lost: list[_Slot] = []  # whose readers have kept them for too long
        self._newest: _Slot | None = None
        # To be the newest once it is complete.
        self._pending: tuple[_Slot, Snapshot, SnapshotCopy] | None = None
        self.is_finite: bool | None = None
        self.version = 0  # of the newest snapshot; 0 before the first
        self.skipped = 0  # snapshots that were not published because readers held every slot
        self._was_short = False  # of memory
        self._is_closed = False

    def publish_snapshot(
        self,
        layout: Layout,
        nbytes: int,
        progress: TrainingProgress,
        write: Callable[[ByteArray], SnapshotCopy],
    ) -> Snapshot | None:
        """Let `write` fill a free slot of `nbytes` bytes, and make it the newest once it is full.

        Returns the snapshot, which is complete after `settle` and unchanged until the next one is
        published. Returns `None` if every slot is being read, or the one before is not complete.
        Then the round is skipped. If `write` raises, nothing is published and the error passes
        through.
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
        """Number snapshots from this version on, if none has a higher one."""
        with self._lock:
            self.version = max(self.version, version)

    def settle(self) -> None:
        with self._lock:
            self._commit()

    def commit(self) -> None:
        """Make the last published snapshot the newest if it is complete by now."""
        with self._lock:
            self._commit_if_ready()

    def newest(self) -> Lease | None:
        """Lease the newest snapshot that is complete, or return `None` before the first one."""
        with self._lock:
            self._commit_if_ready()
            return None if self._newest is None else self._lease(self._newest)

    def at(self, version: int) -> Lease | None:
        """Lease the snapshot of this version, as long as its slot was not written again."""
        with self._lock:
            self._commit_if_ready()
            for slot in self._slots:
                if slot.snapshot is not None and slot.snapshot.version == version:
                    return self._lease(slot)
        return None

    def layout(self) -> Layout | None:
        """Return the layout of the newest snapshot, or `None` before the first one."""
        with self._lock:  # without a lease, which an interrupt would leave behind
            self._commit_if_ready()
            snapshot = None if self._newest is None else self._newest.snapshot
            return None if snapshot is None else snapshot.layout

    def report(self) -> JsonObject:
        """Describe the memory in plain data: bytes of the slots, and of those that were lost."""
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
                    self._pending[
                        2
                    ].wait_complete()  # nothing may be written to memory that is gone
            finally:
                for slot in (*self._slots, *self._lost):
                    slot.segment.close()
                if self.shared is not None:
                    self.shared.close()

    def _claim(self, nbytes: int) -> _Slot | None:
        """Reserve a slot for writing, but never the newest one."""
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
        """Take memory for one more slot, if there may be one, in place of those that do not fit."""
        for slot in [s for s in self._slots if s is not self._newest]:
            if slot.segment.data.nbytes != nbytes and slot.try_claim():
                slot.segment.close()  # of a model that had another size
                self._slots.remove(slot)
        is_full = len(self._slots) >= self.most_slots and not self._lose_one()
        if is_full or self._is_closed:  # by a signal handler, meanwhile
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
        """Do without a snapshot in this round if there is an earlier one."""
        text = f"no memory for a snapshot of {nbytes} bytes"
        if self._newest is None:
            raise UserError(f"{text}, of which a node keeps 2 or more [DPWA-E312]") from None
        if not self._was_short:
            self._was_short = True
            log.warning("%s, so peers read an earlier one [DPWA-W092]", text)

    def _lose_one(self) -> bool:
        """Set a slot aside whose readers had it for too long. It counts until they are done."""
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
                "no room for %d bytes of shared memory (%s), so snapshots can only be streamed"
                " [DPWA-W021]",
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
            raise AssertionError("leased a slot without a snapshot")
        return slot.lease(snapshot, is_shared=self.shared is not None and slot.segment.is_shared)
