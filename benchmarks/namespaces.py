"""Run benchmarks in network namespaces that a link connects. This needs Linux and root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import Plan

from dpwa.testing.namespaces import INTERFACE, Host

_CLONE_NEWNET = 0x4000_0000  # linux/sched.h


def placed(plan: Plan, hosts: Sequence[Host]) -> Plan:
    """Return a copy of the plan, in which each process moves to the namespace of its host."""
    names = {host.address: host.name for host in hosts}
    return replace(plan, options={**plan.options, "namespaces": names})


def enter(namespace: str) -> None:
    """Move this process to a namespace. Call this before the process starts a thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path("/run/netns", namespace)
    with path.open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
