"""Unix domain sockets (`ipc` endpoints), each with one owner process at a time.

Before ZeroMQ listens on an `ipc` endpoint, it removes any file at that path, even the socket of a
living process, or a file that is no socket. It also leaves its own file behind.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpwa.config.endpoints import ipc_path
from dpwa.errors import AddressError
from dpwa.files import free_lock, take_lock

LOCK_SUFFIX = ".lock"
IN_USE = "another process listens there"


@contextmanager
def claimed(endpoint: str) -> Iterator[None]:
    """Reserve the path of an `ipc` endpoint until the context ends. For `tcp`, do nothing.

    Enter the context before the socket is bound, and leave it after the socket is closed. A lock on
    a file next to the path ends with the process, so the path of a killed process is free at once.
    Raises `AddressError` if a living process listens there, if there is a file that is no socket,
    or if the folder cannot be written.
    """
    path = ipc_path(endpoint)
    if path is None:
        yield
        return
    lock_path = Path(path + LOCK_SUFFIX)
    try:
        lock = take_lock(lock_path)
    except OSError as error:
        reason = IN_USE if isinstance(error, BlockingIOError) else error.strerror
        raise AddressError(f"cannot listen on {endpoint}: {reason} [DPWA-E051]") from None
    try:
        reason = _obstacle(path)
        if reason:
            raise AddressError(f"cannot listen on {endpoint}: {reason} [DPWA-E051]")
        try:
            yield
        finally:
            Path(path).unlink(missing_ok=True)
    finally:
        free_lock(lock, lock_path)


def _obstacle(path: str) -> str:
    """Return the reason that prevents a socket from listening at a path, or ""."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return ""
    if not stat.S_ISSOCK(mode):
        return "there is a file that is not a socket"
    # A process that does not use the lock may listen.
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return ""
        except BlockingIOError:  # the queue of connections to accept is full
            return IN_USE
        except OSError as error:
            return error.strerror or str(error)
    return IN_USE
