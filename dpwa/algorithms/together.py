"""Gradients averaged over all who keep pace, and gossip for those who do not."""

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

    As long as all keep pace, that is all-reduce SGD, and nothing is gossiped. A node that is late
    takes its step with its own gradients, and pulls the parameters of others until it has come
    back: by f = n*d / (n*d + s), where d is how many updates the peer has made since it was merged
    last, n how many nodes keep pace, and s how many updates this node has made since then. So what
    each has seen counts alike.

    How rounds end, and who comes back when, is in `dpwa.policy.pace`.

    Sources: Li et al., Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations (2019, arXiv:1908.04207); Luo et al., Prague (2019, arXiv:1909.08029);
    Chen et al., Revisiting Distributed Synchronous SGD (2016, arXiv:1604.00981).

    Attributes:
        is_apart: whether this node is out of pace. As the adapter says, like the next three.
        are_all_there: whether all who can be reached keep pace.
        mates: how many others keep pace.
        place: of this node among them.
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
        """Publish when somebody may want it: those who keep pace in turn, as all have the same."""
        turns = min(self.mates + 1, MAX_TURNS)
        is_turn = not self.are_all_there and view.updates % turns == self.place % turns
        return view.model if self.is_apart or is_turn else None

    def asks(self, view: View) -> Ask | None:
        """Ask a neighbour when out of pace."""
        return super().asks(view) if self.is_apart else None

    def merge(self, view: View, received: Received) -> float:
        """Weigh the peer by the steps that have come with it."""
        clock = received.standing.clock
        if not self.is_apart or clock < view.updates - MAX_LAG_UPDATES:
            return 0.0
        theirs = max(1.0, clock - self._merged.get(received.peer, clock)) * max(1, self.mates)
        own = max(1, view.updates - self._updates)
        self._merged[received.peer], self._updates = clock, view.updates
        return received.merge(theirs / (theirs + own), delta=True)
