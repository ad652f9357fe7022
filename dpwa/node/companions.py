"""Companions: nodes that are ranks of one member, and do each round of gossip alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from dpwa.algorithms import Ask
from dpwa.node.arrival import Arrival


class Companions(Protocol):
    """The ranks of a member whose model is sharded: each has a node of its own, for its shards.

    Each method is called by all of them, at the same place of the same round.
    """

    are_there: bool
    """Whether there are any."""

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:
        """Return what all of them ask for.

        Args:
            ask: what the algorithm of this rank would ask; `None`: nothing, or it may not ask.
            draw: returns a peer by flow control, without those that it is given; `None`: none.
        """
        ...

    def same_for_all(
        self, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        """Return what is to be merged: all ranks have the same version of the same peer's shards.

        What is not merged is released.

        Args:
            arrival: what has come to this rank; `None`: nothing that may be merged.
            older: returns an older version of it, if that can still be had.
        """
        ...

    def all(self, own: bool) -> bool:
        """Tell whether something is so on all ranks."""
        ...


class Alone:
    """Stands for companions where there are none: a node goes by itself."""

    are_there = False

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:  # noqa: ARG002
        """Return what the algorithm asks; flow control draws later."""
        return ask

    def same_for_all(
        self,
        arrival: Arrival | None,
        older: Callable[[Arrival, int], Arrival | None],  # noqa: ARG002
    ) -> Arrival | None:
        """Return what has come."""
        return arrival

    def all(self, own: bool) -> bool:
        """Tell whether it is so here."""
        return own
