"""Access to the shared memory of a peer on this host, without a copy."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np

from dpwa.data.checksum import checksum
from dpwa.data.layout import Layout
from dpwa.data.segments import NONCE_BYTES, PAGE_BYTES, ByteArray, SegmentHeader
from dpwa.data.shared_memory import (
    ALIVE_AT,
    BOARD,
    BOARD_MAGIC,
    NAME_DIGITS,
    NEWEST_AT,
    NEWS_AT,
    NEWS_BYTES,
    NEWS_HEADER,
    PREFIX,
    SHARED_MEMORY_ROOT,
)
from dpwa.data.snapshot import Lease, Snapshot
from dpwa.errors import PeerError
from dpwa.lifecycle import Closeable, uninterrupted

ALIVE_FOR_S = 3.0  # an idle peer writes the time at a third of this interval (see RxThread)
PIN_ATTEMPTS = 20  # an attempt fails only if the peer publishes twice during the attempt

_NAME = re.compile(PREFIX + f"[0-9a-f]{{{NAME_DIGITS}}}")


class NotMappedError(PeerError):
    """A peer's shared memory cannot be mapped, for example because the peer is on another host."""


class PeerMemory(Closeable):
    """The shared folder of a peer. Raises `NotMappedError` if the folder is not the peer's own.

    The proof is the `nonce` of the peer, which must be on the board in the folder. A thread may
    close the folder while another thread pins. A pinned snapshot stays until it is released.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self.name = name
        self.nonce = nonce
        # Reentrant, because a signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self._segments: dict[int, _MappedSegment] = {}
        self._pinned: dict[object, _MappedSegment] = {}  # locked segments, by their reader
        self._folder, self._board = _open_folder(name, nonce, root)
        self._newest = np.frombuffer(self._board, np.uint64, 1, NEWEST_AT)
        self._alive = np.frombuffer(self._board, np.float64, 1, ALIVE_AT)

    def is_alive(self, now: float) -> bool:
        """Return whether the peer has run recently. A suspended process (SIGSTOP) has not."""
        return now - float(self._alive[0]) < ALIVE_FOR_S

    def read_news(self) -> bytes:
        """Return the peer's loss reports, or b"" while the peer writes them."""
        before, total, nbytes = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        start = NEWS_AT + NEWS_HEADER.size
        news = bytes(self._board[start : start + min(nbytes, NEWS_BYTES)])
        after, _, _ = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        is_whole = before == after and before % 2 == 0 and checksum(news) == total
        return news if is_whole else b""

    def pin(self, layout: Layout, version: int = 0, reader: object = None) -> Lease | None:
        """Lease the peer's snapshot `version`, or the newest if that is gone, or return `None`.

        The snapshot must have this layout, and must not be older than `version`. The lease keeps
        the publisher from writing to the snapshot until the lease is released or this process ends.
        Each `reader` has one lease at a time. A new lease ends the reader's old lease, because an
        interrupt may have lost all references to the old lease.
        """
        reader = object() if reader is None else reader
        with self._lock:
            snapshot = self._pin_exactly(layout, version, reader) if version else None
            if snapshot is None:
                snapshot = self._pin_newest(layout, reader)
            if snapshot is not None and snapshot.version < version:
                self.unpin(reader)
                return None
            return None if snapshot is None else Lease(snapshot, partial(self.unpin, reader))

    def unpin(self, reader: object) -> None:
        """End the lease of a reader. Further calls have no effect."""
        with self._lock:
            segment = self._pinned.get(reader)
            if segment is None:
                return
            if list(self._pinned.values()).count(segment) == 1:
                segment.unlock()
            self._pinned.pop(reader, None)

    def _pin_newest(self, layout: Layout, reader: object) -> Snapshot | None:
        for _ in range(PIN_ATTEMPTS):
            number = int(self._newest[0])
            segment = None if number == 0 else self._segment(number)
            snapshot = None if segment is None else self._pin(segment, layout, reader)
            if snapshot is not None:
                return snapshot
        return None

    def _pin_exactly(self, layout: Layout, version: int, reader: object) -> Snapshot | None:
        for number in self._numbers():
            segment = self._segment(number)
            snapshot = None if segment is None else self._pin(segment, layout, reader)
            if snapshot is not None and snapshot.version == version:
                return snapshot
            self.unpin(reader)
        return None

    def _pin(self, segment: _MappedSegment, layout: Layout, reader: object) -> Snapshot | None:
        if reader in self._pinned:
            self.unpin(reader)
        # Set this before locking, so that `unpin` works after an interrupt and no thread closes it.
        self._pinned[reader] = segment
        snapshot = segment.read_snapshot(layout, self.nonce) if segment.lock() else None
        if snapshot is None:
            self.unpin(reader)
        return snapshot

    def close(self) -> None:
        with self._lock:
            self._drop(keep=())
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(segment.nbytes for segment in self._segments.values())

    def _segment(self, number: int) -> _MappedSegment | None:
        if self._folder < 0:
            return None
        return self._segments.get(number) or self._map(number)

    def _map(self, number: int) -> _MappedSegment | None:
        try:
            with uninterrupted():
                self._drop(keep=os.listdir(self._folder))  # noqa: PTH208  (a Path is no descriptor)
                self._segments[number] = _MappedSegment(_open(f"slot-{number}", self._folder))
        except (OSError, ValueError):
            return None  # the peer has replaced this slot by a new one
        return self._segments.get(number)

    def _numbers(self) -> list[int]:
        """Return the numbers of all existing slots, the newest slot first."""
        if self._folder < 0:
            return []
        names = os.listdir(self._folder)  # noqa: PTH208
        slots = [name.removeprefix("slot-") for name in names if name.startswith("slot-")]
        return sorted((int(slot) for slot in slots if slot.isdecimal()), reverse=True)

    def _drop(self, keep: Collection[str]) -> None:
        """Unmap the segments whose files are not in `keep`."""
        for number in [n for n in self._segments if f"slot-{n}" not in keep]:
            segment = self._segments.pop(number)
            segment.is_closing = True
            if segment not in self._pinned.values():
                segment.close()


class PeerFiles(Closeable):
    """The named segments in a peer's shared folder. Raises `NotMappedError` like `PeerMemory`.

    A reader can use a mapped segment as long as it likes, even after the peer has ended.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self._folder, _ = _open_folder(name, nonce, root)

    def map(self, name: str) -> ByteArray | None:
        """Return a read-only view of the named segment, or `None` if no such segment exists."""
        if self._folder < 0:
            return None
        try:
            with uninterrupted():
                memory = _mapped(name, self._folder, 0)
        except (OSError, ValueError):
            return None  # the peer may be creating the segment now
        if len(memory) <= PAGE_BYTES:
            return None
        return np.frombuffer(memory, np.uint8, offset=PAGE_BYTES)

    def close(self) -> None:
        """Close the folder. Mapped memory stays mapped."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


class _MappedSegment:
    """A peer's snapshot file, mapped copy-on-write, so that this process cannot change the file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_closing = False  # whether to close the file when its last reader unlocks it
        try:
            self.nbytes = os.fstat(fd).st_size
            prot = mmap.PROT_READ | mmap.PROT_WRITE
            self._map = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_PRIVATE, prot=prot)
            self._data: ByteArray = np.frombuffer(self._map, np.uint8, offset=PAGE_BYTES)
        except BaseException:
            os.close(fd)
            raise

    def lock(self) -> bool:
        """Lock the file against writes of the publisher. Return False if the publisher locks it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, ValueError):  # ValueError: a signal handler has closed the file
            return False
        return True

    def unlock(self) -> None:
        if self.is_closing:
            self.close()
        elif self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which ends the lock. The memory is freed with the last view of it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read_snapshot(self, layout: Layout, nonce: bytes) -> Snapshot | None:
        """Return the file's snapshot if it has this layout and the node's `nonce`, else `None`."""
        header = SegmentHeader.unpack(self._map)
        if header is None or header.nonce != nonce or header.version == 0:
            return None
        expected = header.nbytes if layout.nbytes is None else layout.nbytes
        if header.fingerprint != layout.fingerprint or header.nbytes != expected:
            return None
        if self._data.nbytes != expected:
            return None
        return Snapshot(header.version, header.progress, layout, self._data, header.is_finite)


def _open_folder(name: str, nonce: bytes, root: Path) -> tuple[int, mmap.mmap]:
    if not _NAME.fullmatch(name):
        raise NotMappedError("the name of the peer's shared folder is invalid")
    try:
        folder = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotMappedError(
            f"the peer's shared folder cannot be opened ({error.strerror})"
        ) from None
    try:
        return folder, _map_board(folder, nonce)
    except BaseException:
        os.close(folder)
        raise


def _map_board(folder: int, nonce: bytes) -> mmap.mmap:
    try:
        board = _mapped(BOARD, folder, PAGE_BYTES)
    except (OSError, ValueError) as error:
        raise NotMappedError(f"the peer's shared memory cannot be mapped ({error})") from None
    if board[: len(BOARD_MAGIC) + NONCE_BYTES] != BOARD_MAGIC + nonce:
        raise NotMappedError("the shared folder with this name belongs to a different node")
    return board


def _mapped(name: str, folder: int, nbytes: int) -> mmap.mmap:
    fd = _open(name, folder)
    try:
        return mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _open(name: str, folder: int) -> int:
    """Open a file if it belongs to this user. Other users could shorten it while it is mapped."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"the file {name} belongs to a different user")
    return fd
