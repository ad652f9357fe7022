"""Alone replaces a group of ranks if a single process holds the whole model."""

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
    """The arguments with which `DpwaPyTorchAdapter` was called, except those of the connection."""

    net: torch.nn.Module
    name: str
    config: ConfigSource
    leader_loss: Callable[[], Loss] | None = None
    optimizer: Given = None
    scheduler: Schedulers = None


# makes an adapter without its initial state, from a `DpwaConnection` or a `NodeElsewhere`
Build = Callable[[Making, Any], tuple[ModuleState, Optimizers]]


class Alone:
    """The methods of a group of ranks that an adapter calls, if one process holds the model."""

    is_alone = True
    has_node = True
    is_inside = True  # whether this rank is within a call
    rank = 0

    def make(self, given: Making, build: Build, begin: Callable[[], None]) -> None:
        """Make the adapters of all ranks, or raise an error on all ranks.

        `begin` loads the initial state. Raises `UserError` if a rank cannot make its adapter, or if
        ranks have different arguments.
        """
        build(given, DpwaConnection(given.name, given.config))
        begin()

    def whole_norm(self) -> Callable[[float], float] | None:
        """Return a function that computes a model's norm from the norm of this rank's shards.

        `None` if each rank has the whole model.
        """
        return None

    def rest(self, own: dict[str, str]) -> dict[str, str]:
        """Return the digests of the tensors of all ranks, by the tensors' names."""
        return own

    def run_finish(
        self, averaged: Averaged, run: Callable[[Averaged], FinishReport]
    ) -> FinishReport:
        """End the training: average the model with the models of the peers."""
        return run(averaged)

    def share_optimizers(self, optimizers: Optimizers) -> None:
        """Send the optimizers' state, which rank 0 has loaded, from rank 0 to all ranks."""

    def still_at_work(self) -> None:
        """If rank 0 works for long, tell the waiting ranks that rank 0 is still alive."""
