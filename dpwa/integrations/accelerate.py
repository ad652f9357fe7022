"""DpwaGossip gossips in loops of Hugging Face Accelerate (the extra `accelerate`)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from dpwa.config import ConfigSource
from dpwa.errors import UserError, from_extra
from dpwa.integrations.training_gossip import TrainingGossip, require_own_model
from dpwa.lifecycle import hide_own_frames
from dpwa.types import Loss

with from_extra("accelerate", "dpwa.integrations.accelerate needs accelerate [DPWA-E032]"):
    from accelerate import Accelerator, DistributedType

if TYPE_CHECKING:
    from dpwa.adapters.merge import Merge


class DpwaGossip(TrainingGossip):
    """Gossip within a loop of Accelerate, used like its `LocalSGD`.

        from dpwa.integrations.accelerate import DpwaGossip

        with DpwaGossip(accelerator, model, optimizer) as gossip:
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    gossip.step(loss)

    At the end of the block, the nodes end together and average, see `finish` of
    `DpwaPyTorchAdapter`. If the block fails, the node is closed. With
    `accelerator.register_for_checkpointing(gossip)`, a training that is resumed before the block
    continues with its own clock.

    Args:
        accelerator: with one process.
        model: as `accelerator.prepare` returns it.
        optimizer: as `accelerator.prepare` returns it, or several. Its state goes with the model's.
        scheduler: the learning rate scheduler, treated like the optimizer.
        config, name, overrides: as for `dpwa.connect`.
        finish: whether the nodes end together.

    Attributes:
        gossip: the adapter, within the block and afterwards.
        report: of `finish`.

    Raises:
        UserError: the accelerator has several processes, or has started torch.distributed.
        UserError, ConfigError, AddressError: at the beginning of the block, as for `dpwa.connect`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        scheduler: Any = None,
        config: ConfigSource | None = None,
        name: str | None = None,
        finish: bool = True,
        **overrides: Any,
    ) -> None:
        kind = accelerator.distributed_type
        require_own_model(
            f"the Accelerator is {kind.value} with {accelerator.num_processes} process(es)",
            is_alone=kind == DistributedType.NO,
        )
        super().__init__(config=config, name=name, finish=finish, **overrides)
        self._accelerator, self._model = accelerator, model
        self._optimizer, self._scheduler = optimizer, scheduler

    def __enter__(self) -> DpwaGossip:
        self._begin(self._model, self._optimizer, self._scheduler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hide_own_frames(error)
        if error is None:
            self._end()
        else:
            self._close()

    def step(self, loss: Loss = None) -> Merge | None:
        """Take a step of gossip, if the optimizer took a step with this batch.

        It took none if gradients are only accumulated, and if the gradient scaler skips the step.

        Args:
            loss: training loss as a number, a 0-d tensor, or `None`.

        Returns:
            The merge, or `None`.

        Raises:
            UserError: outside of the block.
        """
        if self._steps is None:
            raise UserError(
                "DpwaGossip: gossip begins with its block, `with DpwaGossip(...) as` [DPWA-E034]"
            )
        accelerator = self._accelerator
        if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
            return None
        return self._steps.step(loss)
