"""Alone, the ranks of a model that one process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Given, Optimizers, Schedulers
from dpwa.config import ConfigSource
from dpwa.connection import DpwaConnection
from dpwa.node.finish import Averaged
from dpwa.policy.finishing import FinishReport
from dpwa.types import Loss


@dataclass(frozen=True)
class Making:
    """The arguments of an adapter that will be made."""

    net: torch.nn.Module
    name: str
    config: ConfigSource
    leader_loss: Callable[[], Loss] | None = None
    optimizer: Given = None
    scheduler: Schedulers = None


# makes an adapter, without the state that it begins with, of a `DpwaConnection` or `NodeElsewhere`
Build = Callable[[Making, Any], tuple[ModuleState, Optimizers]]


class Alone:
    """The ranks of a model that one process holds, with the methods that an adapter calls."""

    is_alone = True
    has_node = True
    is_inside = True  # a call is under way on this rank
    rank = 0

    def make(self, given: Making, build: Build, begin: Callable[[], None]) -> None:
        """Make the adapters of all ranks, or fail on all of them.

        `begin` loads the initial state. Raises `UserError` if one of the ranks cannot have its own
        adapter, or if they are not alike.
        """
        build(given, DpwaConnection(given.name, given.config))
        begin()

    def whole_norm(self) -> Callable[[float], float] | None:
        """Return the function from the norm of shards to the model's norm. `None`: each rank has
        all.
        """
        return None

    def rest(self, own: dict[str, str]) -> dict[str, str]:
        """Return the digests of all ranks, by the tensors' names."""
        return own

    def run_finish(
        self, averaged: Averaged, run: Callable[[Averaged], FinishReport]
    ) -> FinishReport:
        """Average the model with those of the peers."""
        return run(averaged)

    def share_optimizers(self, optimizers: Optimizers) -> None:
        """Give all ranks the state of the optimizers that rank 0 loaded, if only rank 0 has it."""

    def still_at_work(self) -> None:
        """Say, now and then, that rank 0 is at work, if others wait for it meanwhile."""
