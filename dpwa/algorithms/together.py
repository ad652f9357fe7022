"""Together averages gradients over the nodes in sync, and gossips with the other nodes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.types import StrictModel

# Updates that a snapshot may be behind; an older one is of before its node kept pace.
MAX_LAG_UPDATES = 100
MAX_TURNS = 4  # updates after which a node that keeps pace publishes again, while others do not


class TogetherOptions(StrictModel):
    """Options of `together`."""

    average_at: Literal["backward", "step"] = Field(
        default="backward",
        description="when gradients are averaged: at the end of each backward pass, or only at "
        "the step of the optimizer. Use step if your loop replaces the gradients "
        "first, such as in DP-SGD",
    )


@register_algorithm("together")
class Together(Algorithm):
    """Average the gradients of each step over all nodes in sync, and bring late nodes back.

    As long as all nodes are in sync, this is all-reduce SGD, and nothing is gossiped. A node that
    is late takes its step with its own gradients. Until it rejoins, it pulls the parameters of
    others by f = n*d / (n*d + s), where d is the number of updates of the peer since it was merged
    last, n the number of nodes in sync, and s the number of updates of this node since then. So all
    batches count alike.

    `dpwa.policy.wait_budgets` decides when rounds end, and when a node rejoins.

    Sources: Li et al., Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations (2019, arXiv:1908.04207); Luo et al., Prague (2019, arXiv:1909.08029);
    Chen et al., Revisiting Distributed Synchronous SGD (2016, arXiv:1604.00981).

    Attributes:
        is_apart: whether this node is out of sync. The adapter sets this and the next three.
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
        self._merged: dict[str, float] = {}  # clock of each peer when it was merged last
        self._updates = 0  # at the last merge

    def publishes(self, view: View) -> Values | None:
        """Publish if a node may need it. Nodes in sync take turns, because their parameters are
        equal.
        """
        turns = min(self.mates + 1, MAX_TURNS)
        is_turn = not self.are_all_there and view.updates % turns == self.place % turns
        return view.model if self.is_apart or is_turn else None

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour if this node is out of sync."""
        return super().asks(view) if self.is_apart else None

    def merge(self, view: View, received: Received) -> float:
        """Weigh the peer by the number of steps that its parameters bring."""
        clock = received.standing.clock
        if not self.is_apart or clock < view.updates - MAX_LAG_UPDATES:
            return 0.0
        theirs = max(1.0, clock - self._merged.get(received.peer, clock)) * max(1, self.mates)
        own = max(1, view.updates - self._updates)
        self._merged[received.peer], self._updates = clock, view.updates
        return received.merge(theirs / (theirs + own), delta=True)
