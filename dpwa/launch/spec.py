"""What to launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class LaunchSpec:
    """One command, run once for each node.

    Attributes:
        command: the program and its arguments, the same for every node.
        config_path: the configuration that the nodes read.
        names: the nodes to start; a node's rank is its place in this order.
        cpus: `pin` gives every node its own share of the cores this process may use.
        environment: variables added to those of this process.
        restarts: how often a node that fails is started again.
        world: all nodes of the run, if others are started elsewhere: ranks are places in it.
    """

    command: Sequence[str]
    config_path: Path
    names: Sequence[str]
    cpus: Literal["pin", "none"] = "none"
    environment: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    world: Sequence[str] = ()
