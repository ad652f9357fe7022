"""Open, write and lock files safely in folders where other users or a crash left files."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpwa import fault_points
from dpwa.errors import UserError


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a regular file, as the argument `opener` of `open`. Opening a link for writing fails.

    Raises OSError, also for a pipe or a device, on which the caller would wait.
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
    """Write a file completely or not at all. A link is replaced.

    The data are written to a file with a random name next to `path`, which is then renamed.
    `is_durable`: the file survives a power failure. Raises OSError if it cannot be written.
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


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, such as a full disk, into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: expected a file or folder that can be written ({error.strerror})"
            " [DPWA-E077]"
        ) from None


_locks: set[int] = set()  # descriptors of the locks that this process holds


def take_lock(path: Path) -> int:
    """Create a file if it is missing, and lock it until `free_lock` or the end of this process.

    Returns its descriptor. Raises BlockingIOError if a living process holds the lock, and OSError
    if the file cannot be locked.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former owner removes the file at the end. A lock on a removed file locks nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    _locks.add(lock)
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def free_lock(lock: int, path: Path) -> None:
    """Release a lock, and remove its file."""
    path.unlink(missing_ok=True)
    _locks.discard(lock)
    fcntl.flock(lock, fcntl.LOCK_UN)  # not only close, because a forked copy would keep the lock
    os.close(lock)


def _leave_locks() -> None:
    """Close the locks in a forked child, because the child may live longer than the parent."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


def flush_names(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
