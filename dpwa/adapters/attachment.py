"""Attachment: gossip after every step of an optimizer, without a line in the loop."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dpwa.adapters.optimizer import OptimizerGossip, require_one, was_skipped
from dpwa.errors import ClosedError, UserError
from dpwa.lifecycle import Closeable
from dpwa.types import Loss

if TYPE_CHECKING:
    import torch

    from dpwa.adapters.merge import Merge


class GossipSteps:
    """Steps of gossip in a training whose loop somebody else runs, and what came of them.

    Args:
        conn: the adapter of the module.

    Attributes:
        last_merge: what the last step merged, if anything.
        merges: how many steps have merged something.

    Raises:
        UserError: the configuration has `lr_spread`, and another learning rate for this node.
    """

    def __init__(self, conn: OptimizerGossip) -> None:
        if conn.lr_scale != 1.0:
            raise UserError(
                "`lr_spread` scales learning rates, and schedulers made before would undo that: "
                "wrap the optimizer in GossipOptimizer in place of attaching it"
            )
        self._conn = conn
        self.last_merge: Merge | None = None
        self.merges = 0

    def step(self, loss: Loss = None) -> Merge | None:
        """Take one; see `DpwaPyTorchAdapter.step`."""
        self.last_merge = self._conn.step(loss)
        self.merges += self.last_merge is not None
        return self.last_merge


class Attachment(GossipSteps, Closeable):
    """Follows an optimizer: whenever it has taken a step, there is a step of gossip.

    A step that is skipped by a `GradScaler` is none, nor is a batch whose gradients are only
    accumulated. It ends with the connection, and does not keep the adapter alive.

    Args:
        optimizer: of the module.
        conn: the adapter of the module.

    Attributes:
        loss: the training loss that the next step goes by, to be set by the loop, if it is known;
            `None`: not measured.
        last_merge: what the last step merged, if anything.
        merges: how many steps have merged something.

    Raises:
        UserError: the configuration has `lr_spread`, and another learning rate for this node; or it
            is no optimizer of torch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, conn: OptimizerGossip) -> None:
        super().__init__(weakref.proxy(conn))
        require_one(optimizer)
        conn.include_optimizer(optimizer)
        self.loss: Loss = None
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def close(self) -> None:
        """Follow the optimizer no more."""
        self._hook.remove()

    def _stepped(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],  # noqa: ARG002  (what torch passes)
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> None:
        if was_skipped(optimizer):
            return
        try:
            self.step(self.loss)
        except (ReferenceError, ClosedError):  # forgotten, or closed by `close_all`
            self.close()  # and the loop goes on
