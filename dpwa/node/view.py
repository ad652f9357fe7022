"""NodeView: what an algorithm may know of its node."""

from __future__ import annotations

import random

from dpwa.algorithms import Values
from dpwa.config import Config
from dpwa.node.leader_table import LeaderTable
from dpwa.node.peers import PeerTable
from dpwa.policy.interpolation import interpolation


class NodeView:
    """What a node knows at this moment; see `dpwa.algorithms.View`.

    Attributes:
        name: of the node.
        rng: randomness, seeded by the configuration.
        fetch_probability, keeps_local_step, asks_leader: as the configuration has it.
        updates: how many `update_send` there were, with the one under way.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        peer_table: PeerTable,
        leader_table: LeaderTable,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.rng = rng
        self.fetch_probability = config.fetch_probability
        self.keeps_local_step = config.merge == "delta"
        self.asks_leader = interpolation(config.interpolation).asks_leader
        self.updates = 0
        self._groups = {node.name: node.group for node in config.nodes}
        self._model: Values | None = None
        self._peer_table = peer_table
        self._leader_table = leader_table

    @property
    def model(self) -> Values:
        """The parameters in training."""
        if self._model is None:
            raise LookupError("this node gossips raw bytes, which only their owner can change")
        return self._model

    @model.setter
    def model(self, model: Values) -> None:
        self._model = model

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers in view."""
        return self._peer_table.names

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss, of all or of the own group."""
        able = {self.name, *self._peer_table.mergeable}
        return self._leader_table.leader(of_all=of_all, among=able)

    def has_groups(self) -> bool:
        """Tell whether the nodes belong to more than one group."""
        names, own = self._peer_table.names, self._groups.get(self.name)
        is_configured = any(self._groups.get(name, own) != own for name in names)
        return is_configured or self._leader_table.has_groups(names)

    def total_updates(self) -> float:
        """Return how many updates all nodes have made together, as far as the news goes."""
        return self._leader_table.total_updates(self._peer_table.names)
