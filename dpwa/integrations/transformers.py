"""DpwaCallback gossips in the `Trainer` of Hugging Face Transformers (the extra `hf`)."""

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


# Not the name of the class: a Trainer would make a callback anew from what has that.
_SAVED = "dpwa"
# Of `DpwaPyTorchAdapter.metrics`; under `together` rounds are known in place of the distance.
LOGGED = ("consensus_distance", "live_peers", "merges", "rounds", "wait_share")


class DpwaCallback(TrainingGossip, TrainerCallback):  # type: ignore[misc]
    """Follows a `Trainer`, so that each of its optimizer steps is followed by a step of gossip.

        from dpwa.integrations.transformers import DpwaCallback

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DpwaCallback()])
        trainer.train()

    Micro-batches whose gradients are accumulated are one step, and a step that the gradient scaler
    skips is none. When the training is over, the nodes end together and average, see `finish` of
    `DpwaPyTorchAdapter`. A training that is resumed from a checkpoint continues with its own clock.

    Args:
        config, name, overrides: as for `dpwa.connect`.
        finish: whether the nodes end together.
        log: names of the `metrics` of the adapter that the Trainer logs, without `dpwa/`. `None`
            stands for all.

    Attributes:
        gossip: the adapter, while it trains and afterwards. Close it if the training fails.
        report: of `finish`.

    Raises:
        UserError: when the training begins, if the Trainer has started torch.distributed.
        UserError, ConfigError, AddressError: when the training begins, as for `dpwa.connect`.
    """

    def __init__(self, *, log: Collection[str] | None = LOGGED, **options: Any) -> None:
        super().__init__(**options)
        self._logged = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        require_own_model(
            "the Trainer has started torch.distributed, as RANK, LOCAL_RANK and WORLD_SIZE are set"
        )
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        if state.global_step > 0:
            self.load_state_dict(state.stateful_callbacks.get(_SAVED, {}))
        self._begin(kwargs["model"], optimizer, scheduler, state.global_step, attaches=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Stop at the last step, where steps from a peer count, though a Trainer starts at 0."""
        state.stateful_callbacks[_SAVED] = self.state_dict()  # goes into checkpoints
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
        logs.update(figures)  # for the callbacks that come after this one
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._end()
