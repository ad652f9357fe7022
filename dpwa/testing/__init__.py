"""Faults on purpose: links that are slow or cut, processes that die at a chosen moment, and more.

They are for the tests of dpwa, and for yours. See docs/testing.md. The names below are loaded on
first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.testing.faults import Fault, FaultPlan, FaultyProcess, install_from_environment
    from dpwa.testing.namespaces import Host, Namespaces, namespaces_missing
    from dpwa.testing.proxy import ProxyCounts, TcpProxy
    from dpwa.virtual_network import Link, VirtualClock, VirtualNetwork

_HOMES = {
    "Fault": "dpwa.testing.faults",
    "FaultPlan": "dpwa.testing.faults",
    "FaultyProcess": "dpwa.testing.faults",
    "Host": "dpwa.testing.namespaces",
    "Link": "dpwa.virtual_network",
    "Namespaces": "dpwa.testing.namespaces",
    "ProxyCounts": "dpwa.testing.proxy",
    "TcpProxy": "dpwa.testing.proxy",
    "VirtualClock": "dpwa.virtual_network",
    "VirtualNetwork": "dpwa.virtual_network",
    "install_from_environment": "dpwa.testing.faults",
    "namespaces_missing": "dpwa.testing.namespaces",
}

__all__ = [
    "Fault",
    "FaultPlan",
    "FaultyProcess",
    "Host",
    "Link",
    "Namespaces",
    "ProxyCounts",
    "TcpProxy",
    "VirtualClock",
    "VirtualNetwork",
    "install_from_environment",
    "namespaces_missing",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpwa.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
