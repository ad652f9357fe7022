"""Attachment: gossip after every step of an optimizer, without a line in the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpwa.adapters.optimizer import OptimizerGossip, scale_learning_rates
from dpwa.lifecycle import Closeable
from dpwa.types import Loss

if TYPE_CHECKING:
    import torch

    from dpwa.adapters.merge import Merge


class Attachment(Closeable):
    """Follows an optimizer: whenever it has taken a step, there is a step of gossip.

    A step that is skipped, as by a `GradScaler`, or one of several whose gradients are accumulated,
    is none of the optimizer and so none of gossip.

    Args:
        optimizer: of the module; the `lr` of its groups is multiplied by `conn.lr_scale`, once.
        conn: the adapter of the module.

    Attributes:
        loss: the training loss that the next step goes by, to be set by the loop, if it is known;
            `None`: not measured.
        last_merge: what the last step merged, if anything.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, conn: OptimizerGossip) -> None:
        self._conn = conn
        self.loss: Loss = None
        self.last_merge: Merge | None = None
        scale_learning_rates(optimizer, conn.lr_scale)
        conn.include_optimizer(optimizer)
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def close(self) -> None:
        """Follow the optimizer no more."""
        self._hook.remove()

    def _stepped(
        self,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  (what torch passes)
        args: tuple[Any, ...],  # noqa: ARG002
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> None:
        self.last_merge = self._conn.step(self.loss)
