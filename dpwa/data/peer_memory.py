"""The shared memory of a peer on this host, which this process maps, pins and reads."""

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

ALIVE_FOR_S = 3.0  # three of the beats of an idle RxThread
PIN_ATTEMPTS = 20  # each is lost only when the peer has published twice since it was begun

_NAME = re.compile(PREFIX + f"[0-9a-f]{{{NAME_DIGITS}}}")


class NotMappedError(PeerError):
    """A peer's shared memory cannot be mapped, because of a different host or a different owner."""


class PeerMemory(Closeable):
    """The folder of a peer, if the peer has proved that it is its own, or `NotMappedError`.

    One thread pins while another may close. A pinned snapshot stays until it is released. `nonce`
    must be on the board.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self.name = name
        self.nonce = nonce
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._segments: dict[int, _MappedSegment] = {}
        self._pinned: dict[object, _MappedSegment] = {}  # what is locked, by who reads it
        self._folder, self._board = _open_folder(name, nonce, root)
        self._newest = np.frombuffer(self._board, np.uint64, 1, NEWEST_AT)
        self._alive = np.frombuffer(self._board, np.float64, 1, ALIVE_AT)

    def is_alive(self, now: float) -> bool:
        """Return whether the peer was at work recently, unlike one that is stopped."""
        return now - float(self._alive[0]) < ALIVE_FOR_S

    def read_news(self) -> bytes:
        """Return the loss reports on the board, or b"" while they are being written."""
        before, total, nbytes = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        start = NEWS_AT + NEWS_HEADER.size
        news = bytes(self._board[start : start + min(nbytes, NEWS_BYTES)])
        after, _, _ = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        is_whole = before == after and before % 2 == 0 and checksum(news) == total
        return news if is_whole else b""

    def pin(self, layout: Layout, version: int = 0, reader: object = None) -> Lease | None:
        """Lease the newest snapshot, or return `None` if there is none of this layout.

        The lease keeps the publisher from writing to it, until it is released or this process ends.
        If `version` is gone, a later one is leased, but never an earlier one. Each `reader` has one
        lease at a time. The one before ends, because an interrupt may have lost every other
        reference to it.
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
        # First: whatever comes in between, it can be given back, and is not closed meanwhile.
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
            return None  # replaced by another one meanwhile
        return self._segments.get(number)

    def _numbers(self) -> list[int]:
        """Return the numbers of the slots that there are, the latest first."""
        if self._folder < 0:
            return []
        names = os.listdir(self._folder)  # noqa: PTH208
        slots = [name.removeprefix("slot-") for name in names if name.startswith("slot-")]
        return sorted((int(slot) for slot in slots if slot.isdecimal()), reverse=True)

    def _drop(self, keep: Collection[str]) -> None:
        """Unmap the segments whose files are gone."""
        for number in [n for n in self._segments if f"slot-{n}" not in keep]:
            segment = self._segments.pop(number)
            segment.is_closing = True
            if segment not in self._pinned.values():
                segment.close()


class PeerFiles(Closeable):
    """Named segments in the folder of a peer, if the peer has proved that it is its own.

    A mapped segment stays readable as long as a reader holds it, even if the peer ends.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self._folder, _ = _open_folder(name, nonce, root)

    def map(self, name: str) -> ByteArray | None:
        """Return the bytes of a segment, read-only, or `None` if there is none of this name."""
        if self._folder < 0:
            return None
        try:
            with uninterrupted():
                memory = _mapped(name, self._folder, 0)
        except (OSError, ValueError):
            return None  # or it is just being made
        if len(memory) <= PAGE_BYTES:
            return None
        return np.frombuffer(memory, np.uint8, offset=PAGE_BYTES)

    def close(self) -> None:
        """Close the folder. Mapped memory stays."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


class _MappedSegment:
    """One file of a peer, mapped copy-on-write, so that the peer's memory cannot be changed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_closing = False  # as soon as nobody reads it
        try:
            self.nbytes = os.fstat(fd).st_size
            prot = mmap.PROT_READ | mmap.PROT_WRITE
            self._map = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_PRIVATE, prot=prot)
            self._data: ByteArray = np.frombuffer(self._map, np.uint8, offset=PAGE_BYTES)
        except BaseException:
            os.close(fd)
            raise

    def lock(self) -> bool:
        """Keep the publisher from writing, unless it is about to. Return whether that worked."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, ValueError):  # or a signal handler has closed it just now
            return False
        return True

    def unlock(self) -> None:
        if self.is_closing:
            self.close()
        elif self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which ends the lock. The memory is freed with its last view."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read_snapshot(self, layout: Layout, nonce: bytes) -> Snapshot | None:
        """Return the snapshot that the header describes, or `None` if it is unsuitable."""
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
        raise NotMappedError("that is no name of a folder")
    try:
        folder = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotMappedError(f"its folder cannot be opened: {error.strerror}") from None
    try:
        return folder, _map_board(folder, nonce)
    except BaseException:
        os.close(folder)
        raise


def _map_board(folder: int, nonce: bytes) -> mmap.mmap:
    try:
        board = _mapped(BOARD, folder, PAGE_BYTES)
    except (OSError, ValueError) as error:
        raise NotMappedError(f"its board cannot be mapped: {error}") from None
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
    """Open a file of this user only, so that no other user can shorten it while it is mapped."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{name} belongs to another user")
    return fd
