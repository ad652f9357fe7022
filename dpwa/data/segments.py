"""Segments: the memory of one snapshot, private to the process or mapped from a shared file.

A file starts with one page that describes the snapshot. The bytes of the snapshot follow:

    0     magic, nonce of the node, fingerprint, version, clock, loss, whether it is finite, nbytes,
          trace
    4096  the bytes

Readers in other processes hold a shared `flock` on the file, and a writer holds an exclusive one.
So nothing is written while a process reads. The kernel frees the locks of a process that ends.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import FINGERPRINT_BYTES
from dpwa.types import MAX_CLOCK, TRACE_BYTES, TrainingProgress

ByteArray = npt.NDArray[np.uint8]

NONCE_BYTES = 16
PAGE_BYTES = 4096

_MAGIC = b"dpwaslot"
_HEADER = struct.Struct(f"<8s{NONCE_BYTES}s{FINGERPRINT_BYTES}sQddBQ{TRACE_BYTES}s")
_UNCHECKED = 2


@dataclass(frozen=True)
class SegmentHeader:
    nonce: bytes  # the nonce of the node that owns the segment, `NONCE_BYTES` long
    fingerprint: bytes  # the fingerprint of the layout
    version: int  # 0 if the segment holds no snapshot
    progress: TrainingProgress  # the clock and loss of the node at that moment
    is_finite: bool | None  # `None` if the publisher has not checked
    nbytes: int

    def pack(self) -> bytes:
        loss = math.nan if self.progress.loss is None else self.progress.loss
        finite = _UNCHECKED if self.is_finite is None else int(self.is_finite)
        return _HEADER.pack(
            _MAGIC,
            self.nonce,
            self.fingerprint,
            self.version,
            self.progress.clock,
            loss,
            finite,
            self.nbytes,
            self.progress.trace,
        )

    @classmethod
    def unpack(cls, page: mmap.mmap) -> SegmentHeader | None:
        """Return the header of a mapped file, or `None` if the file has no valid header."""
        fields = _HEADER.unpack_from(page)
        magic, nonce, fingerprint, version, clock, loss, finite, nbytes, trace = fields
        # The header is untrusted, because another process has written it.
        can_be = 0.0 <= clock <= MAX_CLOCK and version < 2**63 and loss != -math.inf
        if magic != _MAGIC or not can_be:
            return None
        known = None if math.isnan(loss) else loss
        progress = TrainingProgress(clock=clock, loss=known, trace=trace if any(trace) else b"")
        is_finite = None if finite == _UNCHECKED else bool(finite)
        return cls(nonce, fingerprint, version, progress, is_finite, nbytes)


class Segment:
    is_shared = False

    def __init__(self, nbytes: int) -> None:
        self.data: ByteArray = np.zeros(nbytes, np.uint8)

    def try_claim(self) -> bool:
        """Get the right to write, if no other process reads. `release` ends the right."""
        return True

    def describe(self, header: SegmentHeader) -> None:
        """Write a description of the contents for readers in other processes."""

    def release(self) -> None:
        """Let other processes read the contents, if `describe` was called."""

    def close(self) -> None:
        """Free the memory. Readers can use the memory until they release it."""


class SharedSegment(Segment):
    """Memory for one snapshot, in a file that other processes of this user can map.

    Raises `OSError` if the file cannot be made.
    """

    is_shared = True

    def __init__(self, path: str, number: int, nbytes: int, remove: Callable[[str], None]) -> None:
        self.path = path
        self.number = number
        self._remove = remove
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Reserve the memory now, because a lack of memory later would cause a bus error.
            os.posix_fallocate(self._fd, 0, PAGE_BYTES + nbytes)
            self._map = mmap.mmap(self._fd, PAGE_BYTES + nbytes)
        except BaseException:
            os.close(self._fd)
            remove(path)
            raise
        self.data = np.frombuffer(self._map, np.uint8, offset=PAGE_BYTES)

    def try_claim(self) -> bool:
        """Get the right to write, if no other process reads. `release` ends the right."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, ValueError):  # ValueError: a signal handler has closed the file
            return False
        self._map[: _HEADER.size] = bytes(_HEADER.size)
        return True

    def describe(self, header: SegmentHeader) -> None:
        """Write a description of the contents for readers in other processes."""
        self._map[: _HEADER.size] = header.pack()

    def release(self) -> None:
        """Let other processes read the contents, if `describe` was called."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the file. Processes that have mapped it can use the memory until they unmap it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._remove(self.path)
            os.close(fd)
