"""Base class of algorithms that take many local steps, then an outer step with a random peer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dpwa.algorithms.base import Algorithm, Ask, Values, View
from dpwa.types import StrictModel


class OuterStepOptions(StrictModel):
    """The options that all algorithms with outer steps have."""

    period: int = Field(default=50, ge=1, description="number of local steps between outer steps")


class OuterSteps(Algorithm):
    """Publish and fetch values after every `period` local steps, again until a peer answers."""

    options_model = OuterStepOptions
    uses_rule = False
    repeats = True
    needs_whole = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.phi: Values | None = None
        self._momentum: Values | None = None
        self._steps = 0

    def publishes(self, view: View) -> Values | None:
        """Return the values to publish at the first update and for an outer step, else `None`."""
        if self.phi is None:
            self.phi = view.model.clone()
            return view.model
        self._steps += 1
        return self.outer(view, self.phi) if self._is_due else None

    def outer(self, view: View, phi: Values) -> Values:  # noqa: ARG002
        """Return the values to publish for an outer step."""
        return view.model

    def asks(self, view: View) -> Ask | None:  # noqa: ARG002
        """Ask a random peer for its values if `period` local steps have passed."""
        return Ask() if self._is_due else None

    def done(self) -> None:
        """Start the next period of local steps."""
        self._steps = 0

    def momentum(self, phi: Values) -> Values:
        """Return the momentum of the outer steps, which is zero before the first outer step."""
        if self._momentum is None:
            self._momentum = phi.clone()
            self._momentum.mul_(0.0)
        return self._momentum

    @property
    def _is_due(self) -> bool:
        return bool(self._steps >= self.options.period)
