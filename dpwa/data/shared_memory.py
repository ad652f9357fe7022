"""A node's shared memory: a folder of files (segments), and a board that names the newest snapshot.

    /dev/shm/dpwa-<32 hex digits>/board      locked by its owner as long as it lives
                                  slot-1     a segment (see segments.py)
                                  slot-2

When the owner ends, for any reason, the kernel frees the owner's lock on the board. So a folder is
stale if its board can be locked. Any process that finds a stale folder removes it. Process ids
would not show this, because containers that share /dev/shm have separate process ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import shutil
import struct
import time
from pathlib import Path

import numpy as np

from dpwa.data.checksum import checksum
from dpwa.data.segments import NONCE_BYTES, PAGE_BYTES, SharedSegment
from dpwa.lifecycle import Closeable, is_locked

SHARED_MEMORY_ROOT = Path("/dev/shm")  # noqa: S108  (the place of POSIX shared memory)
PREFIX = "dpwa-"
NAME_DIGITS = 32
BOARD = "board"
BOARD_MAGIC = b"dpwaboad"
NEWEST_AT = 64  # offset on the board: the number of the newest slot
ALIVE_AT = 72  # offset on the board: the time when the node last showed that it runs, in seconds
NEWS_AT = 128  # offset on the board: the header of the loss reports, and then the reports
NEWS_HEADER = struct.Struct("<QQI")  # a sequence number (odd during writes), a checksum, the length
NEWS_BYTES = PAGE_BYTES - NEWS_AT - NEWS_HEADER.size
UNFINISHED = ".new"
UNFINISHED_FOR_S = 60.0


class SharedMemory(Closeable):
    """The shared folder of this node. `nonce` proves this to peers. Raises `OSError`."""

    def __init__(self, root: Path = SHARED_MEMORY_ROOT) -> None:
        sweep(root)
        self.name = PREFIX + secrets.token_hex(NAME_DIGITS // 2)
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._path = root / self.name
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._named: dict[str, SharedSegment] = {}  # the segments, by path
        self._board, self._board_fd = self._open_board()
        self._newest = np.frombuffer(self._board, np.uint64, 1, NEWEST_AT)
        self._alive = np.frombuffer(self._board, np.float64, 1, ALIVE_AT)

    def allocate(self, nbytes: int) -> SharedSegment:
        """Return a new segment, or raise `OSError` if there is too little memory."""
        number = next(self._numbers)
        return SharedSegment(str(self._path / f"slot-{number}"), number, nbytes, self._remove)

    def create(self, name: str, nbytes: int) -> SharedSegment:
        """Return a new segment that peers find by its name (see `PeerFiles`), or raise `OSError`.

        `close` closes the segment if the caller has not closed it.
        """
        path = str(self._path / name)
        self._named[path] = segment = SharedSegment(path, 0, nbytes, self._remove)
        return segment

    def announce(self, segment: SharedSegment) -> None:
        self._newest[0] = segment.number

    def beat(self, now: float) -> None:
        """Tell peers that this node runs. `now` is the time of the machine's monotonic clock."""
        self._alive[0] = now

    def post_news(self, news: bytes) -> None:
        """Write loss reports, at most `NEWS_BYTES`, to the board. Only one thread may call this."""
        sequence, _, _ = NEWS_HEADER.unpack_from(self._board, NEWS_AT)
        sequence += sequence % 2  # the number is odd if an interrupt ended the last call
        start, total = NEWS_AT + NEWS_HEADER.size, checksum(news)
        NEWS_HEADER.pack_into(self._board, NEWS_AT, sequence + 1, total, len(news))
        self._board[start : start + len(news)] = news
        NEWS_HEADER.pack_into(self._board, NEWS_AT, sequence + 2, total, len(news))

    def close(self) -> None:
        """Remove the folder. Peers can still use the segments that they have mapped."""
        if self._board_fd < 0:
            return
        for segment in [*self._named.values()]:
            segment.close()
        if os.getpid() == self._owner:  # a forked child must not remove its parent's folder
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._board_fd)
        self._board_fd = -1

    def _open_board(self) -> tuple[mmap.mmap, int]:
        """Create the folder under a temporary name, and rename the folder after locking the board.

        Without the temporary name, another process could remove the folder as stale.
        """
        unfinished = self._path.with_name(self.name + UNFINISHED)
        unfinished.mkdir(mode=0o700)
        try:
            fd = os.open(unfinished / BOARD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            board = mmap.mmap(fd, PAGE_BYTES)
            board[: len(BOARD_MAGIC) + NONCE_BYTES] = BOARD_MAGIC + self.nonce
            unfinished.rename(self._path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return board, fd

    def _remove(self, path: str) -> None:
        self._named.pop(path, None)
        if os.getpid() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108


def sweep(root: Path = SHARED_MEMORY_ROOT) -> int:
    """Remove the folders of nodes that have ended without closing, and return their number."""
    names = PREFIX + "[0-9a-f]" * NAME_DIGITS
    found = [*root.glob(names), *root.glob(names + UNFINISHED)]
    stale = [path for path in found if _is_stale(path)]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return len(stale)


def remains(name: str, root: Path = SHARED_MEMORY_ROOT) -> bool:
    """Return whether the named folder still exists, after removing it if its node has ended."""
    path = root / name
    if _is_stale(path):
        shutil.rmtree(path, ignore_errors=True)
    return path.exists()


def _is_stale(path: Path) -> bool:
    try:
        status = path.stat(follow_symlinks=False)
        if status.st_uid != os.geteuid():
            return False
        if path.name.endswith(UNFINISHED):
            return time.time() - status.st_mtime > UNFINISHED_FOR_S
        return not is_locked(path / BOARD)
    except OSError:
        return False
