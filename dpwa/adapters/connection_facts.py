"""What an adapter says of the node of its connection."""

from __future__ import annotations

from typing import Any, NoReturn

from dpwa.collectives.collectives import Collectives
from dpwa.connection import DpwaConnection


class ConnectionFacts:
    """An adapter's view of its `connection`."""

    connection: DpwaConnection

    @property
    def collectives(self) -> Collectives:
        """What its collectives run on."""
        return self.connection.collectives

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.connection.name

    @property
    def clock(self) -> float:
        """Number of updates, interpolated at each merge like the parameters."""
        return self.connection.clock

    @property
    def updates(self) -> int:
        """Number of `update_send` calls in this node's training so far.

        It goes on from a state that was taken over at the start, and never falls. Use it for
        schedules: the clock is interpolated at each merge, so it does not count calls.
        """
        return self.connection.updates

    def metrics(self) -> dict[str, float]:
        """Return how this node does, for whatever logs the training: a flat dict of numbers.

        The names are `dpwa/loss`, `dpwa/merges`, `dpwa/consensus_distance` and so on, as
        docs/metrics.md lists them; what is not known is left out.

            for tag, value in gossip.metrics().items():
                writer.add_scalar(tag, value, step)      # a SummaryWriter of TensorBoard
        """
        return self.connection.metrics()

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers in view."""
        return self.connection.peers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.connection.described()}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.connection.__reduce_ex__(protocol)
