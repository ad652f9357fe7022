"""Configurations that are made up for a run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa.errors import UserError
from dpwa.launch.ports import free_ports

if TYPE_CHECKING:
    from dpwa.config import NodeConfig


RUN_FOLDER_PREFIX = "dpwa-launch-"
_FILE = "dpwa.yaml"


def runs_here() -> list[Path]:
    """Return the configurations that launchers of this user have made here, the newest first.

    They are there as long as their runs, unless a launcher was killed.
    """
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{RUN_FOLDER_PREFIX}*/{_FILE}"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if path.parent.lstat().st_uid == os.getuid():  # others may make such folders, too
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def local_config(count: int, folder: Path, *, host: str = "127.0.0.1") -> Path:
    """Write a configuration of nodes w1 to wN on free ports into a folder, and return its path.

    Raises:
        UserError: the machine has not enough free ports, or the folder cannot be written.
    """
    from dpwa.config.template import local_nodes

    return write_config(local_nodes(free_ports(count, host), host), folder)


def write_config(nodes: Sequence[NodeConfig], folder: Path) -> Path:
    """Write a configuration of these nodes, with the defaults of new runs; return its path.

    Raises:
        UserError: the folder cannot be written.
    """
    from dpwa.config.template import config_text

    path = folder / _FILE
    try:
        path.write_text(config_text(nodes), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
