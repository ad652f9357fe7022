"""Elastic averaging by gossip: EASGD without a parameter server, so that no node waits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.types import StrictModel, refusal

MIXING = 0.5  # share of the way that a center moves to a peer's center; half mixes fastest


class ElasticOptions(StrictModel):
    """Options of `elastic`."""

    period: int = Field(default=10, ge=1, description="number of local steps between elastic steps")
    beta: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.9,
        description="at each elastic step, the center moves this fraction of its distance toward "
        "the parameters. The parameters move beta/N of the distance toward the center. N is the "
        "number of nodes",
    )

    @field_validator("beta")
    @classmethod
    def _is_stable(cls, beta: float) -> float:
        if beta >= 1.0:
            raise refusal(
                "a number below 1, because otherwise a node that is alone (N = 1) and its center "
                "diverge from each other"
            )
        return beta


@register_algorithm("elastic")
class Elastic(Algorithm):
    """Pull the parameters toward a center every `period` steps. Gossip averages the centers.

    Node i has parameters x_i and a copy c_i of the center. With N known nodes, it computes:

        x_i -= alpha*(x_i - c_i);    c_i += beta*(x_i - c_i);    alpha = beta/N    (old x_i and c_i)
        c_i += (c_j - c_i)/2                                             j: the next peer

    In the mean over all nodes, the first line is

        x -= alpha*(x - c);    c += beta*(x - c) = sum alpha*(x_i - c)

    The second line keeps the mean of the copies. This is exact if each node is asked as often as it
    asks, and otherwise holds in expectation. Then this is synchronous EASGD. So without gradients,
    sum x_i + c is conserved, and the gap x - c is multiplied by 1 - alpha - beta = 1 - (N+1)*alpha,
    which is stable for alpha + beta < 2. N may fall to 1 when nodes leave, so beta must be below 1.
    Then all results are means of some x_i and c_j without negative weights, so only gradients can
    leave the range of the initial values.

    Only centers are published. If no peer answers, the node asks again after the next step. If a
    peer's center arrives after the next elastic step, it is merged as if it had arrived before.

    Source: S. Zhang, A. Choromanska and Y. LeCun, Deep Learning with Elastic Averaging SGD (2015),
    with the gossip of Boyd et al., Randomized Gossip Algorithms (2006), in place of its server.
    """

    options_model = ElasticOptions
    uses_rule = False
    repeats = True
    needs_whole = True
    has_center = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._steps = 0  # since the last elastic step
        self._mixes = False  # whether the node waits for a peer's center
        self._has_moved = False  # whether the center has changed since it was published

    def publishes(self, view: View) -> Values | None:
        """Return the center at first, and from an elastic step until a merge, otherwise `None`."""
        self._has_moved = False
        if self.center is None:
            self.center = view.model.clone()
            return self.center
        return self.center if self._mixes else None

    def asks(self, view: View) -> Ask | None:  # noqa: ARG002
        """Ask a peer for its center after every elastic step."""
        return Ask() if self._mixes else None

    def after_step(self, view: View) -> None:
        """Take an elastic step after every `period` steps of the optimizer."""
        self._steps += 1
        if self.center is None or self._steps < self.options.period:
            return
        gap = view.model.clone()
        gap.add_(self.center, -1.0)
        view.model.add_(gap, -self._alpha(view))
        self.center.add_(gap, self.options.beta)
        self._steps = 0
        self._mixes = self._has_moved = True

    def merge(self, view: View, received: Received) -> float:
        """Move the center halfway toward the peer's center."""
        if self.center is None:
            return 0.0
        way = received.values()
        way.add_(received.published, -1.0)
        if self._has_moved:  # compute the result of the elastic step from the merged center
            view.model.add_(way, MIXING * self._alpha(view))
            way.mul_(1.0 - self.options.beta)
        self.center.add_(way, MIXING)
        received.merge_buffers(MIXING)
        self._mixes = self._has_moved
        return MIXING

    def _alpha(self, view: View) -> float:
        return float(self.options.beta / (len(view.peers) + 1))
