"""Symmetric exchange: both nodes take the average of their parameters, or neither node does."""

from __future__ import annotations

from dpwa.algorithms.base import Algorithm, Ask, Received, Terms, View, register_algorithm


@register_algorithm("symmetric")
class Symmetric(Algorithm):
    """Move a node and a neighbour toward each other by half the difference of their snapshots.

    With parameters x and published snapshots y, x_i += (y_j - y_i) / 2 and x_j += (y_i - y_j) / 2,
    or neither node changes. So both local steps are kept completely, and the sum of all parameters
    is conserved up to rounding. A node takes part in one exchange at a time. During an exchange, it
    refuses other requests at once, and their senders ask a different peer.

    Source: AD-PSGD (Lian et al., Asynchronous Decentralized Parallel SGD, 2018).
    """

    terms = Terms.EXCHANGE
    uses_rule = False

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour for an exchange."""
        ask = super().asks(view)
        return None if ask is None else Ask(ask.peer, self.terms)

    def merge(self, view: View, received: Received) -> float:  # noqa: ARG002
        """Move by half the difference of both nodes' snapshots. The peer does the same."""
        return received.merge(0.5, delta=True)
