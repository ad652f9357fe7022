"""Starts, watches, restarts and stops nodes together, on this machine or with Ray."""

from __future__ import annotations

from dpwa.launch.configs import local_config
from dpwa.launch.engine import LaunchSpec
from dpwa.launch.local import NodeProcess
from dpwa.launch.ports import require_free_addresses
from dpwa.launch.supervisor import Restart, run_nodes

__all__ = [
    "LaunchSpec",
    "NodeProcess",
    "Restart",
    "local_config",
    "require_free_addresses",
    "run_nodes",
]
