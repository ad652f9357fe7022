"""DpwaCallback adds gossip to the `Trainer` of Lightning (extra `lightning`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpwa.errors import from_extra
from dpwa.integrations.training_gossip import TrainingGossip, require_own_model
from dpwa.types import Loss

with from_extra("lightning", "dpwa.integrations.lightning needs lightning [DPWA-E031]"):
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class DpwaCallback(TrainingGossip, Callback):  # type: ignore[misc]
    """Takes a step of gossip after each optimizer step of a `Trainer`.

        from dpwa.integrations.lightning import DpwaCallback

        trainer = lightning.Trainer(max_epochs=10, callbacks=[DpwaCallback()])
        trainer.fit(model, batches)

    Batches whose gradients are accumulated count as one step. At the end of the training, the node
    calls `DpwaPyTorchAdapter.finish`, so the nodes end together and average. If the training fails,
    the node is closed. A training that resumes from a checkpoint continues with its own clock.

    Args:
        config, name, overrides: as for `dpwa.connect`.
        finish: whether the node calls `finish` at the end.

    Attributes:
        gossip: the adapter, from the start of the training.
        report: the report of `finish`.

    Raises:
        UserError: in `fit`, if the strategy trains with several processes or devices.
        UserError, ConfigError, AddressError: in `fit`, as for `dpwa.connect`.
    """

    _global_step = 0  # the Trainer's global_step at the last step of gossip

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":
            strategy = type(trainer.strategy).__name__
            require_own_model(
                f"the Trainer has {strategy} on {trainer.num_devices} device(s) and "
                f"{trainer.num_nodes} machine(s)",
                is_alone=trainer.world_size == 1,
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Connect. At this moment, the Trainer has loaded the checkpoint that it resumes from.

        The state of optimizers and schedulers is sent and saved together with the model's state.
        """
        self._global_step = trainer.global_step
        schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        schedulers += [scaler] if scaler is not None else []
        self._begin(pl_module, trainer.optimizers, schedulers, trainer.global_step)

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        if self._steps is None or trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        self._steps.step(_loss_of(outputs, trainer, pl_module))
        pl_module.log_dict(self.figures(), on_step=True, on_epoch=False)
        if self.has_done(trainer.estimated_stepping_batches, trainer.global_step):
            trainer.should_stop = True  # because the Trainer does not count adopted steps

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Close the node, so that peers in `finish` do not wait for this node."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._close()


def _loss_of(outputs: Any, trainer: Any, module: Any) -> Loss:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is None or not module.automatic_optimization:
        return None if loss is None else float(loss)
    return float(loss) * int(trainer.accumulate_grad_batches)  # undo Lightning's division
