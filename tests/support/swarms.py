"""Swarms in one process: the real algorithms on numpy arrays, without threads, clocks or networks.

A round is what all nodes do between two steps: publish, ask, train, merge. All of them do one thing
before any does the next (lockstep), as if every message were faster than any step. The phases can
be called one by one, for some of the workers only, to have it otherwise. What one worker tells, all
others hear at once. Chance comes from seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpwa.algorithms import Algorithm, Ask, Terms, algorithm
from dpwa.policy.interpolation import interpolation, merge_factor
from dpwa.policy.leaders import LossReports
from dpwa.policy.push_sum import Mass
from dpwa.policy.running_loss import RunningLoss
from dpwa.policy.topology import Topology, neighbours_of, topology
from dpwa.policy.transactions import Acceptance, Transactions, Verdict
from dpwa.types import NoOptions, StrictModel, TrainingProgress

LONG_S = 1e9


class ArrayValues:
    """`dpwa.algorithms.Values` over one array."""

    def __init__(self, array):
        self.array = array

    def clone(self):
        return ArrayValues(self.array.copy())

    def copy_(self, other):
        self.array[...] = other.array

    def lerp_(self, other, weight):
        self.array += weight * (other.array - self.array)

    def add_(self, other, alpha=1.0):
        self.array += alpha * other.array

    def mul_(self, factor):
        self.array[...] = factor * self.array if factor else 0.0


@dataclass(frozen=True)
class Snapshot:
    """What a worker has published."""

    values: ArrayValues
    buffers: ArrayValues
    standing: TrainingProgress


@dataclass
class Received:
    """`dpwa.algorithms.Received`: a snapshot that has come to a worker."""

    peer: str
    factor: float
    published: ArrayValues
    snapshot: Snapshot
    worker: Worker

    @property
    def standing(self):
        return self.snapshot.standing

    def merge(self, factor, *, delta=False, buffers=None):
        model = self.worker.model
        if delta:
            model.array += factor * (self.snapshot.values.array - self.published.array)
        else:
            model.lerp_(self.snapshot.values, factor)
        self.merge_buffers(factor if buffers is None else buffers)
        return factor

    def values(self, into=None):
        if into is None:
            return self.snapshot.values.clone()
        into.copy_(self.snapshot.values)
        return into

    def merge_buffers(self, factor):
        self.worker.buffers.lerp_(self.snapshot.buffers, factor)


@dataclass(frozen=True)
class Arrival:
    """A snapshot on its way to a worker, with this one's own of the round."""

    peer: Worker
    snapshot: Snapshot
    published: ArrayValues | None
    transaction: bytes = b""
    units: int = 0


@dataclass(frozen=True)
class Settings:
    """What a configuration would say."""

    seed: int = 0
    topology: Topology = field(default_factory=lambda: topology("random"))
    topology_options: StrictModel = field(default_factory=NoOptions)
    fetch_probability: float = 1.0
    interpolation: str = "constant"
    factor: float = 0.5  # of constant
    delta: bool = False
    groups: Sequence[str] = ()
    loss_window: int = 1


class Worker:
    """`dpwa.algorithms.View`: one node, with all that is its own.

    Attributes:
        algorithm: that it runs.
        buffers: the floating ones, here one number.
        loss: of its last step.
        asked: all that its algorithm has asked for.
        merged: the peers and factors of all merges.
    """

    def __init__(self, name: str, start: np.ndarray, algorithm: Algorithm, swarm: Swarm) -> None:
        self.name = name
        self.model = ArrayValues(np.array(start, dtype=np.float64))
        self.buffers = ArrayValues(np.zeros(1))
        self.algorithm = algorithm
        self.loss: float | None = None
        self.updates = 0
        self.asked: list[Ask] = []
        self.merged: list[tuple[str, float]] = []
        settings = swarm.settings
        self.rng = random.Random(f"{settings.seed}/{name}")
        self.fetch_probability = settings.fetch_probability
        self.keeps_local_step = settings.delta
        self.asks_leader = interpolation(settings.interpolation).asks_leader
        self.number = len(swarm.workers)
        self.group = settings.groups[self.number] if settings.groups else ""
        self.reports = LossReports(name, self.group, incarnation=1, forget_after_s=LONG_S)
        self.transactions = Transactions(name, is_exclusive=True, remember_s=LONG_S)
        self.mass = Mass()
        self.snapshot: Snapshot | None = None
        self.published: ArrayValues | None = None  # in this round
        self.inbox: list[Arrival] = []
        self._mean_loss = RunningLoss(settings.loss_window)
        self._swarm = swarm

    @property
    def x(self) -> np.ndarray:
        return self.model.array

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(w.name for w in self._swarm.workers if w is not self)

    def leader(self, *, of_all=True):
        best = self.reports.leader(self._swarm.now, None if of_all else self.group)
        return None if best is None else best.node

    def has_groups(self):
        return any(r.group != self.group for r in self.reports.known(self._swarm.now))

    def total_updates(self):
        return self.reports.total_updates(self._swarm.now, len(self._swarm.workers))

    def publish(self) -> None:
        """Do what `update_send` does first."""
        self.updates += 1
        self._mean_loss.add(self.loss)
        self.reports.tell(self._mean_loss.mean, self.updates, self._swarm.now)
        values = self.algorithm.publishes(self)
        self.published = None if values is None else values.clone()
        if self.published is not None:
            standing = TrainingProgress(clock=float(self.updates), loss=self.loss)
            self.snapshot = Snapshot(self.published, self.buffers.clone(), standing)
            self.mass.published()

    def merge(self) -> None:
        """Do what `update_wait` does."""
        self.algorithm.after_step(self)
        for arrival in self.inbox:
            own = self.model if arrival.published is None else arrival.published
            factor = self._swarm.factor(self, arrival)
            received = Received(arrival.peer.name, factor, own, arrival.snapshot, self)
            self.merged.append((arrival.peer.name, self.algorithm.merge(self, received)))
        self.inbox.clear()


Train = Callable[[Worker], float | None]
"""Takes a local step, in place; returns the loss."""


class Swarm:
    """Workers w0, w1, ... that run the same algorithm.

    Args:
        name: of the algorithm.
        starts: where they begin, shape `(N, ...)`.
        settings: of the swarm.
        options: of the algorithm.
    """

    def __init__(
        self, name: str, starts: Any, settings: Settings | None = None, **options: Any
    ) -> None:
        self.settings = settings or Settings()
        self.rng = random.Random(self.settings.seed)
        self.now = -1.0  # rounds that were begun before this one
        self.workers: list[Worker] = []
        kind = algorithm(name)
        for number, start in enumerate(starts):
            made = kind(kind.options_model(**options))
            self.workers.append(Worker(f"w{number}", start, made, self))
        self._rule = interpolation(self.settings.interpolation)
        is_constant = self._rule.name == "constant"
        constant = {"value": self.settings.factor} if is_constant else {}
        self._rule_options = self._rule.options(**constant)
        self._by_name = {worker.name: worker for worker in self.workers}
        self._follows = kind.follows_leaders or self.workers[0].asks_leader
        self._neighbours: dict[tuple[int, int], list[Worker]] = {}
        self._transactions: list[tuple[Worker, Worker, bytes]] = []

    @property
    def x(self) -> np.ndarray:
        """All parameters, shape `(N, ...)`."""
        return np.stack([worker.x for worker in self.workers])

    def round(self, train: Train | None = None, workers: Sequence[Worker] | None = None) -> None:
        """One round of all workers, or some, in lockstep."""
        taking_part = self.workers if workers is None else workers
        self.publish(taking_part)
        self.ask(taking_part)
        if train is not None:
            for worker in taking_part:
                worker.loss = train(worker)
        self.merge(taking_part)

    def publish(self, workers: Sequence[Worker]) -> None:
        """Begin a round."""
        self.now += 1.0
        for worker in workers:
            worker.publish()
        if self._follows:
            self._spread_news(workers)

    def ask(self, workers: Sequence[Worker]) -> None:
        """Let algorithms ask; whoever has published is asked at once."""
        answers = {
            Terms.PULL: self._pull,
            Terms.EXCHANGE: self._exchange,
            Terms.SHARE: self._share,
        }
        for worker in workers:
            ask = worker.algorithm.asks(worker)
            if ask is not None:
                worker.asked.append(ask)
                answers[ask.terms](worker, self._candidates(worker, ask))

    def merge(self, workers: Sequence[Worker]) -> None:
        """End the round: what has come is merged."""
        for asker, answerer, transaction in self._transactions:
            assert asker.transactions.decide(transaction, commit=True, now=self.now)
            assert answerer.transactions.decided(transaction, commit=True) is Verdict.COMMIT
            asker.transactions.noted(transaction)
        self._transactions.clear()
        for worker in workers:
            worker.merge()

    def factor(self, worker: Worker, arrival: Arrival) -> float:
        """Return the factor to merge with; mass that has come counts as received."""
        if arrival.units:
            factor = worker.mass.factor(arrival.units)
            worker.mass.received(arrival.units)
            arrival.peer.mass.delivered(arrival.transaction)
            return factor
        own = TrainingProgress(clock=float(worker.updates), loss=worker.loss)
        return merge_factor(self._rule, self._rule_options, own, arrival.snapshot.standing, 0.0)

    def _spread_news(self, speakers: Sequence[Worker]) -> None:
        said = [worker.reports.news(self.now, worker.rng, most=1) for worker in speakers]
        for worker in self.workers:
            worker.reports.hear([news for one in said for news in one], self.now)

    def _candidates(self, worker: Worker, ask: Ask) -> list[Worker]:
        """Whom to ask, in this order."""
        if ask.peer is not None:
            return [self._by_name[ask.peer]]
        neighbours = self._neighbours_of(worker.number)
        return self.rng.sample(neighbours, len(neighbours) if ask.terms is Terms.EXCHANGE else 1)

    def _neighbours_of(self, index: int) -> list[Worker]:
        settings, nodes = self.settings, len(self.workers)
        rule, options = settings.topology, settings.topology_options
        phase = int(self.now) % rule.period(options, nodes)
        if (index, phase) not in self._neighbours:
            found = neighbours_of(rule, options, index, nodes, phase)
            self._neighbours[index, phase] = [self.workers[position] for position in found]
        return self._neighbours[index, phase]

    def _pull(self, worker: Worker, peers: Sequence[Worker]) -> None:
        if peers[0].snapshot is not None:
            worker.inbox.append(Arrival(peers[0], peers[0].snapshot, worker.published))

    def _share(self, worker: Worker, peers: Sequence[Worker]) -> None:
        peer, transaction = peers[0], self.rng.randbytes(8)
        units = peer.mass.share(transaction)
        if units is not None:
            assert peer.snapshot is not None
            worker.inbox.append(Arrival(peer, peer.snapshot, worker.published, transaction, units))

    def _exchange(self, worker: Worker, peers: Sequence[Worker]) -> None:
        """Agree on one with the first who is not engaged; both merge when it is decided."""
        for peer in peers:
            transaction, expires = self.rng.randbytes(8), self.now + 1.0
            if not worker.transactions.propose(transaction, peer.name, self.now, expires):
                return
            answer = peer.transactions.accept(transaction, worker.name, self.now, expires)
            if answer is Acceptance.ACCEPTED:
                assert worker.transactions.agreed(transaction)
                assert peer.transactions.ready(transaction)
                assert worker.transactions.prepared(transaction)
                worker.inbox.append(Arrival(peer, peer.snapshot, worker.published))
                peer.inbox.append(Arrival(worker, worker.snapshot, peer.published))
                self._transactions.append((worker, peer, transaction))
                return
            worker.transactions.refused(transaction)
