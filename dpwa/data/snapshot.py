"""Leased snapshots: publishing never waits for a reader, and no reader ever sees a torn snapshot.

A pool owns a few slots. Publishing writes into a slot that nobody reads and makes it the newest;
reading leases the newest slot, which keeps it from being written until the lease is released. When
readers hold every slot, the round is skipped and counted: the trainer goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import Layout
from dpwa.types import Standing

ByteArray = npt.NDArray[np.uint8]

DEFAULT_SLOTS = 3  # the newest, one still being read, and one to write into


@dataclass(frozen=True)
class Snapshot:
    """The parameters of a node at one moment.

    Attributes:
        version: 1 for the first snapshot a node publishes, then rising by 1; never interpolated.
        standing: clock and loss at that moment.
        layout: what the bytes mean.
        data: the bytes, shape `(nbytes,)`; read-only by agreement.
    """

    version: int
    standing: Standing
    layout: Layout
    data: ByteArray


class _Slot:
    def __init__(self) -> None:
        self.buffer: ByteArray = np.empty(0, np.uint8)
        self.snapshot: Snapshot | None = None
        self.leases = 0
        self.writing = False

    def reserve(self, nbytes: int) -> ByteArray:
        if self.buffer.nbytes != nbytes:
            self.buffer = np.zeros(nbytes, np.uint8)  # the gaps between tensors are sent too
        return self.buffer


class Lease:
    """The right to read one snapshot; release it (or leave its `with` block) when done."""

    def __init__(self, snapshot: Snapshot, release: Callable[[], None]) -> None:
        self.snapshot = snapshot
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the slot back; may be called again without effect."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Snapshot:
        return self.snapshot

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class SnapshotPool:
    """A bounded set of slots, shared by one publisher and any number of readers."""

    def __init__(self, slots: int = DEFAULT_SLOTS) -> None:
        if slots < 2:
            raise ValueError(f"a pool needs 2 slots or more, one to read and one to write: {slots}")
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._slots = [_Slot() for _ in range(slots)]
        self._newest: _Slot | None = None
        self._version = 0
        self._skipped = 0

    @property
    def version(self) -> int:
        """Version of the newest snapshot; 0 before the first."""
        return self._version

    @property
    def skipped(self) -> int:
        """How many snapshots were not published because readers held every slot."""
        return self._skipped

    def publish(
        self,
        layout: Layout,
        nbytes: int,
        standing: Standing,
        write: Callable[[ByteArray], None],
    ) -> Lease | None:
        """Let `write` fill a free slot of `nbytes` bytes, then make it the newest snapshot.

        Returns a lease on it, or `None` when every slot is being read and the round is skipped. If
        `write` raises, nothing is published and the error passes through.
        """
        slot = self._free_slot()
        if slot is None:
            return None
        try:
            data = slot.reserve(nbytes)
            write(data)
        except BaseException:
            with self._lock:
                slot.writing = False
            raise
        with self._lock:
            self._version += 1
            slot.snapshot = Snapshot(self._version, standing, layout, data)
            slot.writing = False
            self._newest = slot
            return self._lease(slot)

    def newest(self) -> Lease | None:
        """Lease the newest snapshot, or return `None` before the first one."""
        with self._lock:
            return None if self._newest is None else self._lease(self._newest)

    def _free_slot(self) -> _Slot | None:
        """Reserve a slot without readers for writing; the newest one is never taken."""
        with self._lock:
            for slot in self._slots:
                if slot.leases == 0 and not slot.writing and slot is not self._newest:
                    slot.writing = True
                    slot.snapshot = None
                    return slot
            self._skipped += 1
            return None

    def _lease(self, slot: _Slot) -> Lease:
        snapshot = slot.snapshot
        if snapshot is None:  # only a slot that is being written has none, and it is never leased
            raise AssertionError("leased a slot without a snapshot")
        slot.leases += 1
        return Lease(snapshot, lambda: self._returned(slot))

    def _returned(self, slot: _Slot) -> None:
        with self._lock:
            slot.leases -= 1
