"""Gossip averaging: every node pulls a peer's parameters and moves toward them."""

from __future__ import annotations

from dpwa.algorithms.base import Algorithm, Ask, View, register_algorithm


@register_algorithm("gossip")
class Gossip(Algorithm):
    """Merge the parameters of a neighbour with the factor that the interpolation rule computes.

    Source: dpwa (2017); Boyd et al., Randomized Gossip Algorithms (2006). With `interpolation:
    leader`, the peer is the leader of all nodes, if a leader is known.
    """

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour, or the leader if the interpolation rule needs the leader."""
        ask = super().asks(view)
        leader = view.leader() if ask is not None and view.asks_leader else None
        return ask if leader in (None, view.name) else Ask(leader)
