"""DpwaGossip adds gossip to training loops with Hugging Face Accelerate (extra `accelerate`)."""

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
    """Gossips in a training loop with Accelerate. Use it like Accelerate's `LocalSGD`.

        from dpwa.integrations.accelerate import DpwaGossip

        with DpwaGossip(accelerator, model, optimizer) as gossip:
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    gossip.step(loss)

    At the end of the block, the node calls `DpwaPyTorchAdapter.finish`, so the nodes end together
    and average. If the block raises an error, the node is closed. To continue with the clock of a
    checkpoint, call `accelerator.register_for_checkpointing(gossip)`, and load before the block.

    Args:
        accelerator: an `Accelerator` with one process.
        model: the result of `accelerator.prepare`.
        optimizer: the result of `accelerator.prepare`, or a list of several optimizers. Their state
            is sent and saved together with the model's state.
        scheduler: the learning rate scheduler. Its state is treated like the optimizer's.
        config, name, overrides: as for `dpwa.connect`.
        finish: whether the node calls `finish` at the end.

    Attributes:
        gossip: the adapter, from the start of the block.
        report: the report of `finish`.

    Raises:
        UserError: the accelerator has several processes, or has started torch.distributed.
        UserError, ConfigError, AddressError: at the start of the block, as for `dpwa.connect`.
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

        The optimizer takes no step while gradients are accumulated, or if the gradient scaler skips
        the step.

        Args:
            loss: the training loss as a number, a 0-d tensor, or `None`.

        Returns:
            The merge, or `None` if nothing was merged.

        Raises:
            UserError: the call is outside of the block.
        """
        if self._steps is None:
            raise UserError(
                "DpwaGossip.step works only in a block `with DpwaGossip(...) as gossip` [DPWA-E034]"
            )
        accelerator = self._accelerator
        if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
            return None
        return self._steps.step(loss)
