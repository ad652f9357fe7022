"""Configurations that are made up for a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa.errors import UserError
from dpwa.launch.ports import free_ports

if TYPE_CHECKING:
    from dpwa.config import NodeConfig


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

    path = folder / "dpwa.yaml"
    try:
        path.write_text(config_text(nodes), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
