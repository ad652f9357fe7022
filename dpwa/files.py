"""Files in folders in which other users, or a crash, may have left anything."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dpwa import fault_points


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a regular file, as the `opener` of `open`; to be written to, it must not be a link.

    Raises OSError, also for a pipe or a device, which would let the caller wait.
    """
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= os.O_NOFOLLOW
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


@contextmanager
def written(path: Path, *, is_durable: bool = False) -> Iterator[BinaryIO]:
    """Write a file so that it is there either as a whole or not at all; a link is replaced.

    The file is written beside its place, by a name that nobody can foresee. `is_durable`: it is
    still there after a power cut. Raises OSError if it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(unfinished, "xb", opener=open_regular) as out:
            yield out
            if is_durable:
                out.flush()
                os.fsync(out.fileno())
        fault_points.reached("file.before_rename")
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if is_durable:
        flush_names(path.parent)
    fault_points.reached("file.renamed")


def flush_names(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
