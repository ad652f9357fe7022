"""What an adapter asks the ranks of its model, where one process holds all of the model."""

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
    """An adapter that is to be made: its arguments."""

    net: torch.nn.Module
    name: str
    config: ConfigSource
    leader_loss: Callable[[], Loss] | None = None
    optimizer: Given = None
    scheduler: Schedulers = None


# makes an adapter, without the state that it begins with, of a `DpwaConnection` or `NodeElsewhere`
Build = Callable[[Making, Any], tuple[ModuleState, Optimizers]]


class Alone:
    """The ranks of a model that one process holds: what an adapter asks its ranks, and no more."""

    is_alone = True
    has_node = True
    is_inside = True  # a call is under way on this rank
    rank = 0

    def make(self, given: Making, build: Build, begin: Callable[[], None]) -> None:
        """Make the adapters of all ranks, or fail on all of them.

        `begin` takes over the state to begin with. Raises `UserError` if one of the ranks cannot
        have its own, or they are not alike.
        """
        build(given, DpwaConnection(given.name, given.config))
        begin()

    def whole_norm(self) -> Callable[[float], float] | None:
        """Return what turns the norm of shards into that of the model; `None`: each has all."""
        return None

    def rest(self, own: dict[str, str]) -> dict[str, str]:
        """Return what all ranks tell of tensors by name."""
        return own

    def end(self, averaged: Averaged, run: Callable[[Averaged], FinishReport]) -> FinishReport:
        """Average the model with those of peers."""
        return run(averaged)

    def share(self, optimizers: Optimizers) -> None:
        """Give what rank 0 has taken over for the optimizers to all ranks, if only it has."""

    def still_at_work(self) -> None:
        """Say, now and then, that rank 0 is at work, if others wait for it meanwhile."""
