"""Local SGD, in which random pairs of nodes take outer Nesterov steps like those of DiLoCo."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Received, View, register_algorithm
from dpwa.algorithms.outer_steps import OuterStepOptions, OuterSteps
from dpwa.policy.outer import nesterov_limit
from dpwa.types import refusal


class LocalOptions(OuterStepOptions):
    """Options of `local`."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0, description="Nesterov momentum of the outer steps"
    )
    lr: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=1.0,
        validate_default=True,
        description="learning rate of the outer steps. The value 1 without momentum is local SGD",
    )

    @field_validator("lr")
    @classmethod
    def _is_stable(cls, lr: float, known: ValidationInfo) -> float:
        momentum = known.data.get("momentum", 0.0)
        limit = nesterov_limit(momentum)
        if lr >= limit:
            raise refusal(
                f"a number below {limit:.4g}, the limit for momentum {momentum:g}, so that nodes "
                "do not diverge from each other"
            )
        return lr


@register_algorithm("local")
class Local(OuterSteps):
    """Take an outer Nesterov step with a random peer after every `period` local steps.

    With the partner's parameters x_j and this node's outer parameters phi:

        D = phi - (x_i + x_j) / 2;  v = mu*v + D;  phi = phi - lr*(D + mu*v);  x = phi

    With lr 1 and no momentum, this is x = (x_i + x_j) / 2, which is local SGD. Local steps that the
    node takes while the partner's parameters arrive are kept completely. If no partner answers, the
    node asks again after the next step.

    Source: Stich, Local SGD Converges Fast and Communicates Little (2019); DiLoCo (Douillard et
    al., 2023), with random pairs instead of its all-reduce.
    """

    options_model = LocalOptions

    def merge(self, view: View, received: Received) -> float:
        """Take the outer Nesterov step with the partner's snapshot."""
        lr, mu, phi = self.options.lr, self.options.momentum, self.phi
        if phi is None or (lr, mu) == (1.0, 0.0):
            factor = received.merge(0.5, delta=True)
            self.done()
            return factor
        peer = received.values()
        outer = phi.clone()  # D
        outer.add_(received.published, -0.5)
        outer.add_(peer, -0.5)
        velocity = self.momentum(phi)
        velocity.mul_(mu)
        velocity.add_(outer)
        outer.add_(velocity, mu)
        phi.add_(outer, -lr)
        view.model.add_(phi)  # x = phi, plus the local steps since it was published
        view.model.add_(received.published, -1.0)
        received.merge_buffers(0.5)
        self.done()
        return 0.5
