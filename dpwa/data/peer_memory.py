"""The shared memory of a peer on this host, as this process sees it: mapped, pinned, read."""

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
from dpwa.data.snapshot import Condition, Lease, Snapshot
from dpwa.errors import PeerError
from dpwa.lifecycle import Closeable

ALIVE_FOR_S = 3.0  # three of the beats of an idle RxThread
PIN_ATTEMPTS = 20  # each is lost only when the peer has published twice since it was begun

_NAME = re.compile(PREFIX + f"[0-9a-f]{{{NAME_DIGITS}}}")


class NotMappedError(PeerError):
    """A peer's shared memory is not to be had: it is on another host, or has another owner."""


class PeerMemory(Closeable):
    """The folder of a peer, proved to be the one that it speaks of.

    One thread pins while another may close: what is pinned stays until it is released.

    Args:
        name: of the folder, as the peer calls it.
        nonce: what must stand on the board.
        root: where shared memory lives.

    Raises:
        NotMappedError: it cannot be mapped, or it is another one.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self.name = name
        self.nonce = nonce
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._segments: dict[int, _MappedSegment] = {}
        self._folder, self._board = _open_folder(name, nonce, root)
        self._newest = np.frombuffer(self._board, np.uint64, 1, NEWEST_AT)
        self._alive = np.frombuffer(self._board, np.float64, 1, ALIVE_AT)

    def is_alive(self, now: float) -> bool:
        """Tell whether the peer was at work lately; one that is stopped is not."""
        return now - float(self._alive[0]) < ALIVE_FOR_S

    def news(self) -> bytes:
        """Return the news on the board; nothing while they are being written."""
        before, total, nbytes = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        start = NEWS_AT + NEWS_HEADER.size
        news = bytes(self._board[start : start + min(nbytes, NEWS_BYTES)])
        after, _, _ = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        is_whole = before == after and before % 2 == 0 and checksum(news) == total
        return news if is_whole else b""

    def pin(self, layout: Layout, version: int = 0) -> Lease | None:
        """Lease the newest snapshot; `None` when there is none of this layout to be had.

        The lease keeps the publisher from writing to it, until it is released or this process ends.

        Args:
            layout: what it must be like.
            version: which one is wanted rather than the newest; if it is gone, a later one is
                leased, an earlier one is not. 0: the newest.
        """
        lease = self._pin_exactly(layout, version) if version else None
        if lease is None:
            lease = self._pin_newest(layout)
        if lease is not None and lease.snapshot.version < version:
            lease.release()
            return None
        return lease

    def _pin_newest(self, layout: Layout) -> Lease | None:
        with self._lock:
            for _ in range(PIN_ATTEMPTS):
                segment = self._newest_segment()
                snapshot = segment.pin(layout, self.nonce) if segment is not None else None
                if segment is not None and snapshot is not None:
                    return Lease(snapshot, partial(self._released, segment))
        return None

    def _pin_exactly(self, layout: Layout, version: int) -> Lease | None:
        with self._lock:
            for number in self._numbers():
                segment = self._segment(number)
                snapshot = segment.pin(layout, self.nonce) if segment is not None else None
                if segment is None or snapshot is None:
                    continue
                if snapshot.version == version:
                    return Lease(snapshot, partial(self._released, segment))
                segment.unpin()
        return None

    def close(self) -> None:
        """Unmap everything, except what is being read."""
        with self._lock:
            self._drop(keep=())
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1

    @property
    def nbytes(self) -> int:
        """How much of the peer's memory is mapped."""
        with self._lock:
            return sum(segment.nbytes for segment in self._segments.values())

    def _newest_segment(self) -> _MappedSegment | None:
        number = int(self._newest[0])
        return None if number == 0 else self._segment(number)

    def _segment(self, number: int) -> _MappedSegment | None:
        if self._folder < 0:
            return None
        if number not in self._segments:
            try:
                self._drop(keep=os.listdir(self._folder))  # noqa: PTH208  (a Path is no descriptor)
                self._segments[number] = _MappedSegment(_open(f"slot-{number}", self._folder))
            except (OSError, ValueError):
                return None  # replaced by another one meanwhile
        return self._segments[number]

    def _numbers(self) -> list[int]:
        """Return the numbers of the slots that there are, the latest first."""
        if self._folder < 0:
            return []
        names = os.listdir(self._folder)  # noqa: PTH208
        slots = [name.removeprefix("slot-") for name in names if name.startswith("slot-")]
        return sorted((int(slot) for slot in slots if slot.isdecimal()), reverse=True)

    def _released(self, segment: _MappedSegment, _: Condition) -> None:
        with self._lock:
            segment.unpin()

    def _drop(self, keep: Collection[str]) -> None:
        """Unmap the segments whose files are gone."""
        for number in [n for n in self._segments if f"slot-{n}" not in keep]:
            self._segments.pop(number).close()


class PeerFiles(Closeable):
    """Named segments in the folder of a peer, proved to be the one that it speaks of.

    What is mapped stays readable as long as somebody holds it, whatever becomes of the peer.

    Raises:
        NotMappedError: it cannot be mapped, or it is another one.
    """

    def __init__(self, name: str, nonce: bytes, root: Path = SHARED_MEMORY_ROOT) -> None:
        self._folder, _ = _open_folder(name, nonce, root)

    def map(self, name: str) -> ByteArray | None:
        """Return the bytes of a segment, read-only; `None` when there is none of this name."""
        if self._folder < 0:
            return None
        try:
            fd = _open(name, self._folder)
        except OSError:
            return None
        try:
            memory = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None  # it is just being made
        finally:
            os.close(fd)
        if len(memory) <= PAGE_BYTES:
            return None
        return np.frombuffer(memory, np.uint8, offset=PAGE_BYTES)

    def close(self) -> None:
        """Let go of the folder; what is mapped stays."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


class _MappedSegment:
    """One file of a peer. Mapped copy-on-write: nothing done here can change the peer's memory."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pins = 0
        self._closing = False
        try:
            self.nbytes = os.fstat(fd).st_size
            prot = mmap.PROT_READ | mmap.PROT_WRITE
            self._map = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_PRIVATE, prot=prot)
            self._data: ByteArray = np.frombuffer(self._map, np.uint8, offset=PAGE_BYTES)
        except BaseException:
            os.close(fd)
            raise

    def pin(self, layout: Layout, nonce: bytes) -> Snapshot | None:
        """Lock the file and read its header; `None` when it is being written or is of no use."""
        self._pins += 1  # first: a signal handler may close what is not pinned
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unpin()
            return None
        snapshot = self._read(layout, nonce)
        if snapshot is None:
            self.unpin()
        return snapshot

    def unpin(self) -> None:
        """Let the publisher write again, once as many times as it was pinned."""
        self._pins -= 1
        if self._pins == 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            if self._closing:
                os.close(self._fd)

    def close(self) -> None:
        """Give up the file as soon as it is not pinned; the memory goes with its last view."""
        self._closing = True
        if self._pins == 0:
            os.close(self._fd)

    def _read(self, layout: Layout, nonce: bytes) -> Snapshot | None:
        header = SegmentHeader.unpack(self._map)
        if header is None or header.nonce != nonce or header.version == 0:
            return None
        expected = header.nbytes if layout.nbytes is None else layout.nbytes
        if header.fingerprint != layout.fingerprint or header.nbytes != expected:
            return None
        if self._data.nbytes != expected:
            return None
        return Snapshot(header.version, header.standing, layout, self._data, header.is_finite)


def _open_folder(name: str, nonce: bytes, root: Path) -> tuple[int, mmap.mmap]:
    """Open the folder of a peer and map its board, which must have the nonce."""
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
        fd = _open(BOARD, folder)
        try:
            board = mmap.mmap(fd, PAGE_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise NotMappedError(f"its board cannot be mapped: {error}") from None
    if board[: len(BOARD_MAGIC) + NONCE_BYTES] != BOARD_MAGIC + nonce:
        raise NotMappedError("another node's folder has its name")
    return board


def _open(name: str, folder: int) -> int:
    """Open a file of this user only: nobody else can shorten it while it is mapped."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{name} is of another user")
    return fd
