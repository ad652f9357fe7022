"""GossipOptimizer: an optimizer whose step is followed by a step of gossip."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from dpwa.errors import UserError
from dpwa.node.ending.finishing import SECONDS
from dpwa.types import Loss

if TYPE_CHECKING:
    from dpwa.adapters.merge import Merge
    from dpwa.policy.finishing import FinishReport

_OWN = frozenset({"optimizer", "conn", "loss", "last_merge", "step"})
_LEARNING_RATES = ("lr", "initial_lr")  # the second is where schedulers start from


class OptimizerGossip(Protocol):
    """What the optimizer needs of a `DpwaPyTorchAdapter`."""

    @property
    def lr_scale(self) -> float:
        """What learning rates are multiplied with; 1 changes nothing."""
        ...

    def step(self, loss: Loss = None) -> Merge | None:
        """Merge what has come, publish, and start the next fetch."""
        ...

    def finish(self, *, seconds: float = ..., timeout_s: float | None = ...) -> FinishReport:
        """End the training together with the peers."""
        ...

    def include_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Hand on, keep and take over the state of an optimizer with the module's."""
        ...


class GossipOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: `step` updates the parameters, merges a peer's and publishes.

        with DpwaPyTorchAdapter(net, "w1", "nodes.yaml") as gossip:
            optimizer = GossipOptimizer(torch.optim.Adam(net.parameters()), gossip)
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = criterion(net(inputs), targets)
                loss.backward()
                optimizer.step(loss=loss)
            optimizer.finish()

    All else is the wrapped optimizer's: parameter groups, state, hooks, `state_dict` and whatever
    attributes it has. Make learning rate schedulers afterwards, from this one, and pass this one to
    a `GradScaler`; a step that a scaler skips is no step of gossip either.

    Args:
        optimizer: to be wrapped; the `lr` of its groups is multiplied by `conn.lr_scale`, once.
        conn: the adapter of the module; it stays yours to close.

    Attributes:
        optimizer, conn: as given.
        loss: the training loss that a step without one goes by; `None`: not measured.
        last_merge: what the last step merged, if anything.
    """

    # Its `__init__` is not called: everything that this would set up is the wrapped optimizer's.
    def __init__(self, optimizer: torch.optim.Optimizer, conn: OptimizerGossip) -> None:
        self.optimizer = optimizer
        self.conn = conn
        self.loss: Loss = None
        self.last_merge: Merge | None = None
        scale_learning_rates(optimizer, conn.lr_scale)
        conn.include_optimizer(optimizer)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Loss = None) -> Any:
        """Take a step of the wrapped optimizer, then a step of gossip.

        Args:
            closure: passed on; what it returns is the loss, unless that is given.
            loss: the training loss: a number, a numpy scalar or a 0-d tensor.

        Returns:
            What the wrapped optimizer returned: as a rule the loss of the closure.

        Raises:
            ParametersError: the loss is not one number, or the module has nothing to gossip.
            ClosedError: the adapter was closed.
        """
        returned = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if was_skipped(self.optimizer):
            return returned
        measured = (value for value in (loss, returned, self.loss) if value is not None)
        self.last_merge = self.conn.step(next(measured, None))
        return returned

    def finish(self, *, seconds: float = SECONDS, timeout_s: float | None = None) -> FinishReport:
        """End the training together with the peers; see `DpwaPyTorchAdapter.finish`."""
        return self.conn.finish(seconds=seconds, timeout_s=timeout_s)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do as the wrapped optimizer does; so do the others."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the learning rate that it has."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return a state that the wrapped optimizer can load, too."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load such a state, learning rates and all."""
        self.optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:  # such as `grad_scale`, which a fused optimizer reads in its own step
            setattr(self.optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.optimizer, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UserError(
            "a GossipOptimizer cannot be pickled or copied, as its connection cannot: "
            "save its state_dict()"
        )


def was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a fused optimizer has left its step out, within the step of a `GradScaler`.

    That one calls it all the same, and lets it know that gradients are not finite.
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and float(found) > 0.0


def scale_learning_rates(optimizer: torch.optim.Optimizer, scale: float) -> None:
    """Multiply the learning rates of an optimizer, and those that its schedulers start from."""
    if scale == 1.0:
        return
    for group in optimizer.param_groups:
        for key in _LEARNING_RATES:
            if key in group:
                group[key] = group[key] * scale
