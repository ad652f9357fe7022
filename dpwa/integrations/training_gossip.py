"""TrainingGossip, the common base class of the integrations."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from dpwa.adapters.optimizer import GossipSteps, Schedulers
from dpwa.config import ConfigSource
from dpwa.discovery.connect import connect
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.adapters.merge import Merge
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.policy.finishing import FinishReport

log = logging.getLogger("dpwa.integrations")


class TrainingGossip:
    """Connects a node at the start of a training, and calls `finish` at the end.

    `config`, `name` and `overrides` are as for `dpwa.connect`.
    """

    def __init__(
        self,
        *,
        config: ConfigSource | None = None,
        name: str | None = None,
        finish: bool = True,  # whether to call `finish` at the end
        **overrides: Any,
    ) -> None:
        self._config, self._name, self._overrides = config, name, overrides
        self._finishes = finish
        self._steps: GossipSteps | None = None
        self._resumed: tuple[float, int] | None = None  # the clock and updates of a checkpoint
        self.gossip: DpwaPyTorchAdapter | None = None  # the adapter, from the start of the training
        self.report: FinishReport | None = None  # the report of `finish`

    @property
    def last_merge(self) -> Merge | None:
        """The result of the last step's merge, or `None`."""
        return None if self._steps is None else self._steps.last_merge

    @property
    def merges(self) -> int:
        """The number of steps that merged a peer's snapshot."""
        return 0 if self._steps is None else self._steps.merges

    @property
    def rounds(self) -> int:
        """Under `algorithm: together`, the number of rounds that averaged gradients with peers."""
        return int(self.figures().get("dpwa/rounds", 0))

    def has_done(self, steps: float, counted: int) -> bool:
        """Return whether the node has made `steps` updates, but the library counted fewer steps.

        The library does not count the steps of the peer whose state this node has adopted.
        """
        return self.gossip is not None and counted < steps <= self.gossip.updates

    def figures(self) -> dict[str, float]:
        """Return the adapter's `metrics` for a logger, or {} before the training starts."""
        if self.gossip is None:
            return {}
        return self.gossip.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a checkpoint: the clock and the number of updates."""
        if self.gossip is None:
            return {}
        return {"clock": self.gossip.clock, "updates": self.gossip.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the result of `state_dict` when the training starts."""
        if state_dict:
            self._resumed = float(state_dict["clock"]), int(state_dict["updates"])

    def _begin(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Schedulers,
        step: int = 0,  # the number of optimizer steps in the checkpoint that the training resumes
        *,
        # whether each optimizer step takes a step of gossip. If not, the caller must call `step`
        attaches: bool = False,
    ) -> None:
        """Connect. `optimizer` and `scheduler` may also be lists of several."""
        self._close()
        clock, updates = self._resumed or (float(step), step)
        self._resumed = None
        overrides = self._overrides
        if updates > 0:  # a peer's state must not replace the state of the resumed training
            overrides = {"initial_state": "own", **overrides}
        if not self._finishes:
            overrides = {"needs_finish": False, **overrides}
        settings = {"config": self._config, "name": self._name, **overrides}
        gossip = connect(model, optimizer, scheduler=scheduler, **settings)
        try:
            if gossip.updates == 0 and updates > 0:
                gossip.connection.node.rounds.resume(clock, updates)
                text = "%s: starts from the state of the resumed training (clock %.0f) [DPWA-W072]"
                log.warning(text, gossip.name, clock)
            if attaches:
                self._steps = gossip.attach(optimizer)
            else:
                self._steps = GossipSteps(gossip)
                gossip.include_optimizer(optimizer)  # so that `together` averages its first step
        except BaseException:
            gossip.close()
            raise
        self.gossip = gossip

    def _end(self) -> None:
        """Call `finish`, unless the user has set `finish=False`, and disconnect."""
        if self.gossip is not None:
            with self.gossip:
                if self._finishes:
                    self.report = self.gossip.finish()

    def _close(self) -> None:
        if self.gossip is not None:
            self.gossip.close()


def require_own_model(what: str, *, is_alone: bool = True) -> None:
    """Raise `UserError` if several processes or devices train one model.

    This is the case if `is_alone` is false or torch.distributed was started. The message starts
    with `what`.
    """
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if has_group or not is_alone:
        raise UserError(
            f"{what}, so all processes and devices would train one model. A node needs a model of "
            "its own. Start your script with `dpwa launch -n 4 -- python SCRIPT` instead of "
            "torchrun or `accelerate launch`, and use one device [DPWA-E033]"
        )
