"""What the ranks that hold a module together need of their adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Optimizers
from dpwa.adapters.training_state import TrainingState
from dpwa.connection import DpwaConnection
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.node import Node
from dpwa.state.states import States
from dpwa.types import Loss


class Adapter(Protocol):
    """What ranks need of a `DpwaPyTorchAdapter`."""

    connection: DpwaConnection
    _node: Node
    _rounds: GossipRounds
    _state: ModuleState
    _training: TrainingState
    _states: States
    _optimizers: Optimizers
    _leader_loss: Callable[[], Loss] | None

    def _take_over_optimizers(self) -> bool: ...
