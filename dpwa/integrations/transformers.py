"""DpwaCallback adds gossip to the `Trainer` of Hugging Face Transformers (extra `hf`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dpwa.adapters.optimizer import Attachment
from dpwa.errors import from_extra
from dpwa.integrations.training_gossip import TrainingGossip, require_own_model

with from_extra(
    "hf", "dpwa.integrations.transformers needs transformers and accelerate [DPWA-E030]"
):
    from transformers import TrainerCallback


# The key of the callback's state. It is not the name of the class, because a Trainer makes a new
# callback from a state with the name of a class.
_SAVED = "dpwa"
# Some names of `DpwaPyTorchAdapter.metrics`. `together` has `rounds` and no `consensus_distance`.
LOGGED = ("consensus_distance", "live_peers", "merges", "rounds", "wait_share")


class DpwaCallback(TrainingGossip, TrainerCallback):  # type: ignore[misc]
    """Takes a step of gossip after each optimizer step of a `Trainer`.

        from dpwa.integrations.transformers import DpwaCallback

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DpwaCallback()])
        trainer.train()

    Micro-batches whose gradients are accumulated count as one step. A step that the gradient scaler
    skips does not count. At the end of the training, the node calls `DpwaPyTorchAdapter.finish`, so
    the nodes end together and average. A training that resumes from a checkpoint continues with its
    own clock.

    Args:
        config, name, overrides: as for `dpwa.connect`.
        finish: whether the node calls `finish` at the end.
        log: the names of the adapter's `metrics` that the Trainer logs, without `dpwa/`. `None`
            means all.

    Attributes:
        gossip: the adapter, from the start of the training. If the training fails, close it.
        report: the report of `finish`.

    Raises:
        UserError: at the start of the training, if the Trainer has started torch.distributed.
        UserError, ConfigError, AddressError: at the start of the training, as for `dpwa.connect`.
    """

    def __init__(self, *, log: Collection[str] | None = LOGGED, **options: Any) -> None:
        super().__init__(**options)
        self._logged = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        require_own_model(
            "RANK, LOCAL_RANK and WORLD_SIZE are set and the Trainer has started torch.distributed"
        )
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        if state.global_step > 0:
            self.load_state_dict(state.stateful_callbacks.get(_SAVED, {}))
        self._begin(kwargs["model"], optimizer, scheduler, state.global_step, attaches=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Stop the Trainer after the last step. The steps in an adopted state count, too."""
        state.stateful_callbacks[_SAVED] = self.state_dict()  # the Trainer saves it in checkpoints
        if self.has_done(state.max_steps, state.global_step):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        logs = kwargs.get("logs") or {}
        if "loss" not in logs or not isinstance(self._steps, Attachment):
            return
        self._steps.loss = float(logs["loss"])
        figures = self.figures()
        if self._logged is not None:
            figures = {k: v for k, v in figures.items() if k.removeprefix("dpwa/") in self._logged}
        logs.update(figures)  # for the callbacks that the Trainer calls after this callback
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._end()
