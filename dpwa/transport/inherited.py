"""Sockets that a forked child inherits: with its copies the port would stay in use."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from contextlib import suppress

from dpwa.config.endpoints import split_tcp


def close_inherited(endpoints: Collection[str]) -> None:
    """Close this process's copies of the sockets that listen on endpoints, or were accepted there.

    To be called in a forked child, which has no thread that uses them.
    """
    ports = {address[1] for endpoint in endpoints if (address := split_tcp(endpoint)) is not None}
    with suppress(FileNotFoundError):  # no /proc: the copies stay
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if ports & {_local_port(descriptor)}:
                os.close(descriptor)


def _local_port(descriptor: int) -> int | None:
    try:
        inherited = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        return None
    try:
        if inherited.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return int(inherited.getsockname()[1])
    except OSError:
        return None
    finally:
        inherited.detach()
