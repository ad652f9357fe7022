"""The algorithm `together`: a partial all-reduce of gradients, and gossip by late nodes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.types import StrictModel

# Maximum age of a snapshot, in updates. An older one is from before its node was in sync.
MAX_LAG_UPDATES = 100
MAX_TURNS = 4  # maximum updates between two publications of a node in sync


class TogetherOptions(StrictModel):
    """Options of `together`."""

    average_at: Literal["backward", "step"] = Field(
        default="backward",
        description="time at which nodes average gradients: at the end of each backward pass, or "
        "only at the step of the optimizer. Use step if your loop replaces the gradients before "
        "the step, as DP-SGD does",
    )


@register_algorithm("together")
class Together(Algorithm):
    """Average the gradients of each step over the nodes in sync. Late nodes gossip, then rejoin.

    As long as all nodes are in sync, this is all-reduce SGD, and no node gossips. A late node takes
    its step with its own gradients. Until it rejoins, it pulls the parameters of other nodes with
    the factor f = n*d / (n*d + s). d is the number of the peer's updates since it was last merged,
    n the number of nodes in sync, and s the number of this node's updates since then. So all
    batches have equal weights.

    `dpwa.policy.wait_budgets` decides when rounds end, and when a node rejoins.

    Sources: Li et al., Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations (2019, arXiv:1908.04207); Luo et al., Prague (2019, arXiv:1909.08029);
    Chen et al., Revisiting Distributed Synchronous SGD (2016, arXiv:1604.00981).

    Attributes:
        is_apart: whether this node is out of sync. The adapter sets all four attributes.
        are_all_there: whether all reachable nodes are in sync.
        mates: the number of other nodes in sync.
        place: the place of this node among the nodes in sync.
    """

    options_model = TogetherOptions
    uses_rule = False
    averages_gradients = True

    is_apart: bool = False
    are_all_there: bool = True
    mates: int = 0
    place: int = 0

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._merged: dict[str, float] = {}  # the clock of each peer at its last merge
        self._updates = 0  # this node's updates at the last merge

    def publishes(self, view: View) -> Values | None:
        """Return the parameters to publish, or `None` if peers need no snapshot of this node.
        Nodes in sync publish in turn, because their parameters are equal.
        """
        turns = min(self.mates + 1, MAX_TURNS)
        is_turn = not self.are_all_there and view.updates % turns == self.place % turns
        return view.model if self.is_apart or is_turn else None

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour if this node is out of sync."""
        return super().asks(view) if self.is_apart else None

    def merge(self, view: View, received: Received) -> float:
        """Merge a peer with a weight that is proportional to its new steps since the last merge."""
        clock = received.standing.clock
        if not self.is_apart or clock < view.updates - MAX_LAG_UPDATES:
            return 0.0
        theirs = max(1.0, clock - self._merged.get(received.peer, clock)) * max(1, self.mates)
        own = max(1, view.updates - self._updates)
        self._merged[received.peer], self._updates = clock, view.updates
        return received.merge(theirs / (theirs + own), delta=True)
