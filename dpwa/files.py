"""Files in folders in which other users, or a crash, may have left anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read from it.

    Raises OSError, also if it is a pipe or a device, for which the caller would wait.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  (pathlib has no opener)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
