"""Fault injection for tests, such as slow or broken links, and processes that die at fault points.

dpwa's tests use it, and your tests can use it, too. See docs/testing.md. Python imports each name
below when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.testing.faults import Fault, FaultPlan, FaultyProcess, install_from_environment
    from dpwa.testing.namespaces import Host, Namespaces, namespaces_missing
    from dpwa.testing.proxy import ProxyCounts, TcpProxy
    from dpwa.virtual_network import Link, VirtualClock, VirtualNetwork

_NAMES = {
    "dpwa.testing.faults": ("Fault", "FaultPlan", "FaultyProcess", "install_from_environment"),
    "dpwa.testing.namespaces": ("Host", "Namespaces", "namespaces_missing"),
    "dpwa.testing.proxy": ("ProxyCounts", "TcpProxy"),
    "dpwa.virtual_network": ("Link", "VirtualClock", "VirtualNetwork"),
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
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'dpwa.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
