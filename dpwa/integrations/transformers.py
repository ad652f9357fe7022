"""DpwaCallback: gossip for the `Trainer` of Hugging Face Transformers (`pip install dpwa[hf]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dpwa.config import ConfigSource
from dpwa.discovery.connect import connect
from dpwa.errors import UserError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UserError(
        "dpwa.integrations.transformers needs transformers and accelerate: pip install dpwa[hf]"
    ) from error

if TYPE_CHECKING:
    from dpwa.adapters.attachment import Attachment
    from dpwa.adapters.merge import Merge
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.policy.finishing import FinishReport


class DpwaCallback(TrainerCallback):  # type: ignore[misc]
    """Follows a `Trainer`: after each of its optimizer steps there is a step of gossip.

        from dpwa.integrations.transformers import DpwaCallback

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DpwaCallback()])
        trainer.train()

    Micro-batches whose gradients are accumulated are one step, and a step that the gradient scaler
    skips is none. When the training is over, the nodes end together and average, see `finish` of
    `DpwaPyTorchAdapter`. A training that is resumed from a checkpoint goes on with its own clock.

    Args:
        config, name, overrides: as `dpwa.connect` takes them.
        finish: whether the nodes end together.

    Attributes:
        gossip: the adapter, while it trains and afterwards; to be closed if the training fails.
        report: of `finish`.

    Raises:
        UserError: when the training begins: the Trainer has started torch.distributed.
        UserError, ConfigError, AddressError: likewise, as `dpwa.connect` does.
    """

    def __init__(
        self,
        *,
        config: ConfigSource | None = None,
        name: str | None = None,
        finish: bool = True,
        **overrides: Any,
    ) -> None:
        self._config, self._name, self._overrides = config, name, overrides
        self._finishes = finish
        self._follower: Attachment | None = None
        self.gossip: DpwaPyTorchAdapter | None = None
        self.report: FinishReport | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Connect, with the model and the optimizer of the Trainer."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise UserError(
                "the Trainer has started torch.distributed, as it does where RANK, LOCAL_RANK and "
                "WORLD_SIZE are set: all processes would train one model. Start it with "
                "`dpwa launch -n 4 -- python SCRIPT`, without torchrun or `accelerate launch`"
            )
        if self.gossip is not None:
            self.gossip.close()
        step, overrides = state.global_step, self._overrides
        if step > 0:  # what the Trainer has resumed from is not to be replaced
            overrides = {"initial_state": "own", **overrides}
        self.gossip = connect(kwargs["model"], config=self._config, name=self._name, **overrides)
        if self.gossip.updates == 0 and step > 0:
            self.gossip.connection.node.rounds.resume(float(step), step)
        optimizer = kwargs["optimizer"]  # accelerate wraps it
        self._follower = self.gossip.attach(getattr(optimizer, "optimizer", optimizer))

    @property
    def last_merge(self) -> Merge | None:
        """What the last step merged, if anything."""
        return None if self._follower is None else self._follower.last_merge

    @property
    def merges(self) -> int:
        """How many steps have merged something."""
        return 0 if self._follower is None else self._follower.merges

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take note of the loss, and add how the gossip goes to what is logged."""
        logs = kwargs.get("logs") or {}
        if self.gossip is None or self._follower is None or "loss" not in logs:
            return
        self._follower.loss = float(logs["loss"])
        figures: dict[str, float] = {
            "dpwa/merges": self.merges,
            "dpwa/clock": self.gossip.clock,
        }
        if self.last_merge is not None:
            figures["dpwa/consensus_distance"] = self.last_merge.consensus_distance
            figures["dpwa/staleness"] = self.last_merge.staleness
        logs.update(figures)  # for the callbacks that come after this one
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End together with the peers, and disconnect."""
        if self.gossip is None:
            return
        with self.gossip:
            if self._finishes:
                self.report = self.gossip.finish()
