"""NoLoCo: many local steps, then an outer momentum step that two random nodes take together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Received, Values, View, register_algorithm
from dpwa.algorithms.outer_steps import OuterStepOptions, OuterSteps
from dpwa.policy.outer import noloco_limit
from dpwa.types import refusal


class NoLoCoOptions(OuterStepOptions):
    """Options of `noloco`."""

    alpha: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.5, description="momentum of the outer steps"
    )
    beta: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.7, description="learning rate of the outer steps"
    )
    gamma: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.7,
        validate_default=True,
        description="strength with which an outer step pulls two nodes toward each other. gamma "
        "must be below 2(1 - alpha^2)",
    )

    @field_validator("gamma")
    @classmethod
    def _is_stable(cls, gamma: float, known: ValidationInfo) -> float:
        alpha = known.data.get("alpha", 0.0)
        limit = noloco_limit(alpha)
        if gamma >= limit:
            raise refusal(
                f"a number below {limit:.4g}, which is 2(1 - alpha^2) for alpha {alpha:g}, so that "
                "nodes do not diverge from each other"
            )
        return gamma


@register_algorithm("noloco")
class NoLoCo(OuterSteps):
    """Take an outer momentum step with a random peer after every `period` local steps.

    phi are the outer parameters of a node, and mean is over the two partners:

        m   = alpha*m + beta*mean(x - phi) + gamma*(mean(phi) - phi_i)
        phi = phi + m;  x = phi

    One published vector is enough: y = phi + beta/gamma * (x - phi), because beta/2 * (x_j - phi_j)
    + gamma/2 * phi_j = gamma/2 * y_j. Local steps that the node takes while the partner's vector
    arrives are kept completely. If no partner answers, the node asks again after the next step.

    Source: NoLoCo (Kolehmainen et al., No-all-reduce Low Communication Training, 2025).
    """

    options_model = NoLoCoOptions

    def outer(self, view: View, phi: Values) -> Values:
        """Return y = phi + beta/gamma * (x - phi), which this node publishes for its partner."""
        y = phi.clone()
        y.lerp_(view.model, self.options.beta / self.options.gamma)
        return y

    def merge(self, view: View, received: Received) -> float:
        """Take the outer momentum step with the partner's vector."""
        if self.phi is None:
            return 0.0
        o, phi, peer = self.options, self.phi, received.values()
        drift = received.published.clone()  # x - phi at the time when y was published
        drift.add_(phi, -1.0)
        drift.mul_(o.gamma / o.beta)
        momentum = self.momentum(phi)
        momentum.mul_(o.alpha)
        momentum.add_(drift, o.beta / 2)
        momentum.add_(peer, o.gamma / 2)
        momentum.add_(phi, -o.gamma / 2)
        phi.add_(momentum)
        view.model.add_(momentum)  # x = phi, plus the local steps since then
        view.model.add_(drift, -1.0)
        received.merge_buffers(0.5)
        self.done()
        return 0.5
