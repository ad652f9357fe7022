"""NoLoCo: many local steps, then an outer momentum step that also pulls random pairs together."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.policy.outer import noloco_limit
from dpwa.types import StrictModel, refusal


class NoLoCoOptions(StrictModel):
    """Options of `noloco`."""

    period: int = Field(default=50, ge=1, description="local steps H between outer steps")
    alpha: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.5, description="momentum of the outer step"
    )
    beta: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.7, description="outer learning rate"
    )
    gamma: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.7,
        validate_default=True,
        description="how strongly pairs are pulled together; below 2(1 - alpha^2)",
    )

    @field_validator("gamma")
    @classmethod
    def _is_stable(cls, gamma: float, known: ValidationInfo) -> float:
        alpha = known.data.get("alpha", 0.0)
        limit = noloco_limit(alpha)
        if gamma >= limit:
            raise refusal(
                f"a number below {limit:.4g}, which is 2(1 - alpha^2) for alpha {alpha:g}: from "
                "there on nodes drift apart without bound"
            )
        return gamma


@register_algorithm("noloco")
class NoLoCo(Algorithm):
    """Take an outer momentum step with a random partner every H local steps.

    With the outer parameters phi of both, and means over the pair:

        m   = alpha*m + beta*mean(x - phi) + gamma*(mean(phi) - phi_i)
        phi = phi + m;  x = phi

    One vector is enough for that: y = phi + beta/gamma * (x - phi) is published, as
    beta/2 * (x_j - phi_j) + gamma/2 * phi_j = gamma/2 * y_j. Local steps that are taken while the
    partner's comes are kept whole. If no partner answers, it is tried again after the next step.

    Source: NoLoCo (Kolehmainen et al., No-all-reduce Low Communication Training, 2025).
    """

    options_model = NoLoCoOptions
    uses_rule = False
    needs_whole = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._phi: Values | None = None
        self._momentum: Values | None = None
        self._steps = 0

    def publishes(self, view: View) -> Values | None:
        """Publish y when an outer step is due."""
        if self._phi is None:
            self._phi = view.model.clone()
            return view.model  # so that partners that are ahead find something
        self._steps += 1
        if self._steps < self.options.period:
            return None
        y = self._phi.clone()
        y.lerp_(view.model, self.options.beta / self.options.gamma)
        return y

    def asks(self, view: View) -> Ask | None:  # noqa: ARG002
        """Ask for a partner when an outer step is due."""
        return Ask() if self._steps >= self.options.period else None

    def merge(self, view: View, received: Received) -> float:
        """Take the outer step."""
        if self._phi is None:
            return 0.0
        o, phi = self.options, self._phi
        drift = received.published.clone()  # x - phi when it was published
        drift.add_(phi, -1.0)
        drift.mul_(o.gamma / o.beta)
        momentum = self._momentum_of(phi)
        momentum.mul_(o.alpha)
        momentum.add_(drift, o.beta / 2)
        momentum.add_(received.values(), o.gamma / 2)
        momentum.add_(phi, -o.gamma / 2)
        phi.add_(momentum)
        view.model.add_(momentum)  # x = phi and what was stepped since
        view.model.add_(drift, -1.0)
        received.merge_buffers(0.5)
        self._steps = 0
        return 0.5

    def _momentum_of(self, phi: Values) -> Values:
        if self._momentum is None:
            self._momentum = phi.clone()
            self._momentum.mul_(0.0)
        return self._momentum
