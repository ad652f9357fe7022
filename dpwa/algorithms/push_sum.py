"""Push-sum gossip: a weighted average. Nodes send each other weights (mass), but create none."""

from __future__ import annotations

from pydantic import Field

from dpwa.algorithms.base import Algorithm, Ask, Received, Terms, View, register_algorithm
from dpwa.types import Fraction, StrictModel


class PushSumOptions(StrictModel):
    """Options of `push_sum`."""

    probability: Fraction = Field(
        default=0.4,
        description="probability that an update asks a peer for half of the mass of the peer. The "
        "mass is the weight of the peer in the average",
    )


@register_algorithm("push_sum")
class PushSum(Algorithm):
    """Fetch a peer's snapshot with half of the peer's weight, and average by the weights.

    A node with parameters x_r, snapshot y_r and weight w_r fetches a snapshot y_s with the weight
    w_s. Then x_r += w_s / (w_r + w_s) * (y_s - y_r) and w_r += w_s. The peer subtracts w_s when it
    serves, and gets w_s back if the reply is lost. So the sum of all weights is conserved, and so
    is the sum of all parameters times their weights. The mean is unbiased on any strongly connected
    graph, unlike the mean of plain pulls.

    Source: Kempe, Dobra, Gehrke, Gossip-Based Computation of Aggregate Information (2003); GoSGD
    (Blot et al., Gossip Training for Deep Learning, 2016).
    """

    options_model = PushSumOptions
    terms = Terms.SHARE
    uses_rule = False

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour for half of its weight, with the configured probability."""
        return Ask(terms=self.terms) if view.rng.random() < self.options.probability else None

    def merge(self, view: View, received: Received) -> float:  # noqa: ARG002
        """Merge with the factor w_s / (w_r + w_s), in which w_s is the received weight."""
        return received.merge(received.factor, delta=True)
