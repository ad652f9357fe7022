"""DpwaGossip: gossip for loops of Hugging Face Accelerate (the extra `accelerate`)."""

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
    """Gossip within a loop of Accelerate, used as its `LocalSGD` is.

        from dpwa.integrations.accelerate import DpwaGossip

        with DpwaGossip(accelerator, model, optimizer) as gossip:
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    gossip.step(loss)

    Where the block ends, the nodes end together and average, see `finish` of `DpwaPyTorchAdapter`;
    where it fails, the node is closed. With `accelerator.register_for_checkpointing(gossip)`, a
    training that is resumed before the block goes on with its own clock.

    Args:
        accelerator: with one process.
        model: as `accelerator.prepare` returns it.
        optimizer: likewise, or several; their state goes with the model's.
        scheduler: likewise, of the learning rate.
        config, name, overrides: as `dpwa.connect` takes them.
        finish: whether the nodes end together.

    Attributes:
        gossip: the adapter, within the block and afterwards.
        report: of `finish`.

    Raises:
        UserError: the accelerator has several processes, or has started torch.distributed.
        UserError, ConfigError, AddressError: where the block begins, as `dpwa.connect` does.
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
        """Take a step of gossip, if this batch was one of the optimizer.

        It was none where gradients are only accumulated, and where the gradient scaler skips it.

        Args:
            loss: training loss; a number, a 0-d tensor, or `None`.

        Returns:
            What was merged, if anything.

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
