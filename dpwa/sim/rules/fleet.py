"""All nodes of a simulated run, who of them lives, and what is counted of each."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from dpwa.policy.beginners import is_far_behind
from dpwa.sim.churn import NodeChange, NodeChangeKind, cut_in_words
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.participant import NodeRules, Participant
from dpwa.sim.rules.peer_book import Neighbourhood, PeerBook
from dpwa.sim.samples import Moment, NodeFigures
from dpwa.sim.scenario import RunSpec, node_name
from dpwa.sim.tasks import TrainingTask

DONORS_TRIED = 8

Floats = NDArray[np.float64]


class Fleet:
    """The nodes, none of which lives at first; their parameters are in `x`, shape (N, D)."""

    def __init__(
        self,
        spec: RunSpec,
        conditions: Conditions,
        task: TrainingTask,
        x: Floats,
        now: Callable[[], float],
    ) -> None:
        config, nodes, seed = spec.config, len(x), spec.scenario.seed
        self.x = x
        self.is_alive = np.zeros(nodes, np.bool_)  # shape (N,)
        self.trains = np.zeros(nodes, np.bool_)  # lives, and has what it begins with
        self.living = 0
        self.incarnations = [0] * nodes  # how many processes of each node there were
        self.rng = random.Random(f"{seed}/fleet")  # chance of what belongs to no node alone
        self.events: list[tuple[float, str]] = []
        self.sent, self.received = np.zeros(nodes), np.zeros(nodes)
        self.trained_s, self.waited_s = np.zeros(nodes), np.zeros(nodes)
        self.served = np.zeros(nodes, np.int64)
        self.updates = np.zeros(nodes, np.int64)
        self._losses = np.full(nodes, np.nan)
        self._conditions = conditions
        self._task = task
        self._now = now
        self._starts = x.copy()
        self._takes_over = config.initial_state != "own"
        self._is_open = config.is_open
        self.neighbourhood = neighbourhood = Neighbourhood(config)
        self.index = neighbourhood.index
        rules = NodeRules.of(config)
        groups = [node.group or "" for node in config.nodes]
        self.participants = [
            Participant(
                node, neighbourhood.names, x[node], rules, group=groups[node], seed=seed, now=now
            )
            for node in range(nodes)
        ]
        self.books = [
            PeerBook(node, neighbourhood, config.connections, random.Random(f"{seed}/peers/{node}"))
            for node in range(nodes)
        ]

    @property
    def alive(self) -> list[Participant]:
        if self.living == len(self.participants):
            return self.participants
        return [self.participants[node] for node in np.flatnonzero(self.is_alive)]

    def change(self, change: NodeChange) -> Participant | None:
        """Let a node start or end; return whose state it is to take over, if it does."""
        node, starts = change.node, change.kind in (NodeChangeKind.START, NodeChangeKind.RETURN)
        if change.time_s > 0.0:
            self.events.append((change.time_s, change.kind.told_of(node_name(node))))
        self.is_alive[node] = starts
        self.living += 1 if starts else -1
        self.trains[node] = False
        if not starts:
            return None
        self.incarnations[node] += 1
        if change.kind is NodeChangeKind.RETURN:
            participant = self.participants[node]
            participant.x[...] = self._starts[node]
            participant.clock, participant.loss = 0.0, None
            self._losses[node] = np.nan
            participant.begin()
        donor = self.donor_for(node) if change.time_s > 0.0 else None
        self.trains[node] = donor is None
        return donor

    def take_over(self, node: int, donor: Participant) -> None:
        self.participants[node].take_over(donor)
        self.trains[node] = True

    def donor_for(self, node: int) -> Participant | None:
        """Return a living node that has come further, if one is found in a few tries."""
        living = np.flatnonzero(self.is_alive).tolist()
        for _ in range(DONORS_TRIED if self._takes_over else 0):
            donor = self.participants[self.rng.choice(living)]
            can_ask = self._conditions.reachable(node, donor.number, self._now())
            if donor.number != node and self.trains[donor.number] and can_ask:
                has_come_further = donor.clock > 0.0
                is_far_ahead = is_far_behind(0.0, donor.clock)
                return donor if is_far_ahead or (self._is_open and has_come_further) else None
        return None

    def step(self, nodes: NDArray[np.int64]) -> None:
        if len(nodes) == len(self.x):
            losses = self._task.step(self.x, nodes)
        else:
            rows = self.x[nodes]
            losses = self._task.step(rows, nodes)
            self.x[nodes] = rows
        self.updates[nodes] += 1
        if losses is not None:
            self._losses[nodes] = losses
            for node, loss in zip(nodes.tolist(), losses.tolist(), strict=True):
                self.participants[node].loss = loss

    def count(self, sender: int, receiver: int, nbytes: float) -> None:
        """Count bytes that one node sends to another, which may be gone."""
        self.sent[sender] += nbytes
        if self.is_alive[receiver]:
            self.received[receiver] += nbytes

    def moment(self, time_s: float) -> Moment:
        trains = self.trains
        losses = self._losses[trains]
        known = losses[~np.isnan(losses)]
        return Moment(
            time_s=time_s,
            round=float(self.updates[trains].mean()) if trains.any() else 0.0,
            x=self.x if trains.all() else self.x[trains],
            loss=float(known.mean()) if len(known) else None,
            bytes_per_node=float(self.sent.mean()),
        )

    def figures(self) -> tuple[NodeFigures, ...]:
        return tuple(
            NodeFigures(
                name=participant.name,
                updates=int(self.updates[node]),
                merges=participant.merges,
                bytes_sent=round(float(self.sent[node])),
                bytes_received=round(float(self.received[node])),
                trained_s=float(self.trained_s[node]),
                waited_s=float(self.waited_s[node]),
                served=int(self.served[node]),
            )
            for node, participant in enumerate(self.participants)
            if self.incarnations[node]
        )


def told(
    events: Iterable[tuple[float, str]], conditions: Conditions, end_s: float
) -> tuple[tuple[float, str], ...]:
    """Return what happened to nodes, with the partitions until the end, in order of time."""
    partitions = [
        (time_s, cut_in_words(nodes))
        for time_s, nodes in conditions.partition_changes()
        if time_s <= end_s
    ]
    return tuple(sorted([*events, *partitions], key=lambda event: event[0]))


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Let memory be freed by counts of references alone."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
