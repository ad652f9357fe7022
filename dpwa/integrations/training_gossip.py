"""TrainingGossip, the common part of the integrations."""

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
    """The gossip of a training, which connects at its beginning, and finishes at its end.

    `config`, `name` and `overrides` are as for `dpwa.connect`.
    """

    def __init__(
        self,
        *,
        config: ConfigSource | None = None,
        name: str | None = None,
        finish: bool = True,  # whether the nodes end together
        **overrides: Any,
    ) -> None:
        self._config, self._name, self._overrides = config, name, overrides
        self._finishes = finish
        self._steps: GossipSteps | None = None
        self._resumed: tuple[float, int] | None = None  # clock and updates of a checkpoint
        self.gossip: DpwaPyTorchAdapter | None = None  # the adapter, while it trains and afterwards
        self.report: FinishReport | None = None  # of `finish`

    @property
    def last_merge(self) -> Merge | None:
        """The result of the last step's merge, or `None`."""
        return None if self._steps is None else self._steps.last_merge

    @property
    def merges(self) -> int:
        """The number of steps that have merged something."""
        return 0 if self._steps is None else self._steps.merges

    @property
    def rounds(self) -> int:
        """The number of rounds of gradients averaged with others, under `algorithm: together`."""
        return int(self.figures().get("dpwa/rounds", 0))

    def has_done(self, steps: float, counted: int) -> bool:
        """Return whether the training has done its `steps`, of which the library has `counted`
        fewer.

        It has not counted those of a peer whose training was adopted.
        """
        return self.gossip is not None and counted < steps <= self.gossip.updates

    def figures(self) -> dict[str, float]:
        """Return the `metrics` of the adapter, to be logged."""
        if self.gossip is None:
            return {}
        return self.gossip.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the contents for a checkpoint: the training clock, and the number of updates."""
        if self.gossip is None:
            return {}
        return {"clock": self.gossip.clock, "updates": self.gossip.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from such a state when the training begins."""
        if state_dict:
            self._resumed = float(state_dict["clock"]), int(state_dict["updates"])

    def _begin(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Schedulers,
        step: int = 0,  # steps of the optimizer that the training has resumed from
        *,
        # gossip follows the steps of the optimizer; else `step` is to be called
        attaches: bool = False,
    ) -> None:
        """Connect. `optimizer` and `scheduler` may each be several."""
        self._close()
        clock, updates = self._resumed or (float(step), step)
        self._resumed = None
        overrides = self._overrides
        if updates > 0:  # what the training has resumed from is not to be replaced
            overrides = {"initial_state": "own", **overrides}
        if not self._finishes:
            overrides = {"needs_finish": False, **overrides}
        settings = {"config": self._config, "name": self._name, **overrides}
        gossip = connect(model, optimizer, scheduler=scheduler, **settings)
        try:
            if gossip.updates == 0 and updates > 0:
                gossip.connection.node.rounds.resume(clock, updates)
                text = "%s: starts from what the training has resumed (clock %.0f) [DPWA-W072]"
                log.warning(text, gossip.name, clock)
            if attaches:
                self._steps = gossip.attach(optimizer)
            else:
                self._steps = GossipSteps(gossip)
                gossip.include_optimizer(optimizer)  # its first step is taken together, too
        except BaseException:
            gossip.close()
            raise
        self.gossip = gossip

    def _end(self) -> None:
        """Finish if that is wanted, and disconnect."""
        if self.gossip is not None:
            with self.gossip:
                if self._finishes:
                    self.report = self.gossip.finish()

    def _close(self) -> None:
        if self.gossip is not None:
            self.gossip.close()


def require_own_model(what: str, *, is_alone: bool = True) -> None:
    """Raise `UserError` if the training shares its model with other processes or devices.

    It does if `is_alone` is false, or torch.distributed has been started. `what` begins the
    message.
    """
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if has_group or not is_alone:
        raise UserError(
            f"{what}: all processes and devices would train one model, and a node needs its own. "
            "Start it with `dpwa launch -n 4 -- python SCRIPT`, without torchrun or `accelerate "
            "launch`, and on one device [DPWA-E033]"
        )
