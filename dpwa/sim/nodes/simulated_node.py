"""SimulatedNode: one node of a run, through all its lives."""

from __future__ import annotations

from dpwa.connection import DpwaConnection
from dpwa.runtime import Condition
from dpwa.sim.nodes.runtime import VirtualRuntime
from dpwa.sim.run_spec import node_name


class SimulatedNode:
    """One node of a run, through all its lives.

    Attributes:
        index, name: of the node.
        lives: how many processes of it there have been.
        updates, merges, served: in all lives that are over, and in this one.
        trained_s, waited_s: likewise.
        is_done: whether it has taken all its updates.
        has_joined: whether its process has come so far as to train.
        has_taken_over: whether it has begun where its peers had come to.
        pace: in which round it is, where all take them together.
        turn: notified when others have come further.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = node_name(index)
        self.lives = 0
        self.updates = 0
        self.loss: float | None = None
        self.trained_s = self.waited_s = 0.0
        self.is_done = False
        self.pace = 0
        self.has_joined = self.has_taken_over = False
        self.turn: Condition | None = None
        self.runtime: VirtualRuntime | None = None
        self.connection: DpwaConnection | None = None
        self._merges = self._served = 0

    @property
    def lives_now(self) -> bool:
        """Whether there is a process of it."""
        return self.runtime is not None

    @property
    def trains(self) -> bool:
        """Whether its parameters count: a process that returns asks its peers for theirs."""
        return self.lives_now and (self.has_joined or self.lives == 1)

    def report(self) -> tuple[int, int]:
        """Return how many snapshots it has merged, and served."""
        if self.connection is None:
            return self._merges, self._served
        report = self.connection.node.report()
        return self._merges + report["merges"], self._served + report["snapshots_served"]

    def end(self) -> None:
        """Clear up after a process that has ended, one way or the other."""
        runtime, connection = self.runtime, self.connection
        self._merges, self._served = self.report()
        self.runtime = self.connection = self.turn = None
        self.has_joined = self.has_taken_over = self.is_done = False
        if runtime is not None:
            runtime.end()
        if connection is not None:
            connection.close()
