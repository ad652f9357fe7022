"""Run the real algorithms on numpy arrays in one process, without threads and networks.

In a round, all workers publish, ask, train and merge. They run in lockstep, so all workers finish a
phase before the next phase starts. To change this, call the phases with some of the workers. All
workers receive the loss reports of a worker at once. All random choices come from seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import Algorithm, Ask, Terms, algorithm
from dpwa.data.array_model import ArrayValues
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.policy.leaders import LossReports, RunningLoss
from dpwa.policy.push_sum import Mass
from dpwa.policy.topology import Topology, neighbours_of, topology
from dpwa.policy.transactions import (
    REMEMBER_S,
    Acceptance,
    DecisionOutcome,
    Transactions,
)
from dpwa.types import NoOptions, StrictModel, TrainingProgress

Floats = NDArray[np.float64]

LONG_S = 1e9


@dataclass(frozen=True)
class SwarmSettings:
    """The settings of a swarm, like the settings of a configuration."""

    seed: int = 0
    topology: Topology = field(default_factory=lambda: topology("random"))
    topology_options: StrictModel = field(default_factory=NoOptions)
    fetch_probability: float = 1.0
    interpolation: str = "constant"
    factor: float = 0.5  # of the interpolation `constant`
    delta: bool = False
    groups: Sequence[str] = ()
    loss_window: int = 1


@dataclass(frozen=True)
class ArraySnapshot:
    """The values that a worker has published, and its progress."""

    values: ArrayValues
    buffers: ArrayValues
    progress: TrainingProgress


@dataclass(frozen=True)
class ArrayArrival:
    """A snapshot of a peer that a worker has received, and the worker's own published values."""

    peer: str
    snapshot: ArraySnapshot
    published: ArrayValues | None  # by the receiving worker, in this round
    units: int = 0  # of push-sum mass that the peer has sent with the snapshot


@dataclass
class ArrayReceived:
    """A `dpwa.algorithms.Received` on arrays, which is an arrival with the factor of its merge."""

    peer: str
    factor: float
    published: ArrayValues
    snapshot: ArraySnapshot
    own: Worker
    ahead: float = 0.0  # always 0, because no snapshot is read from shared memory

    @property
    def standing(self) -> TrainingProgress:
        return self.snapshot.progress

    def merge(self, factor: float, *, delta: float = 0.0, buffers: float | None = None) -> float:
        own = self.own.model.array
        origin = delta * self.published.array + (1.0 - delta) * own if delta else own
        own += factor * (self.snapshot.values.array - origin)
        self.merge_buffers(factor if buffers is None else buffers)
        return factor

    def values(self, into: Any = None) -> Any:
        if into is None:
            return self.snapshot.values.clone()
        into.copy_(self.snapshot.values)
        return into

    def merge_buffers(self, factor: float) -> None:
        self.own.buffers.lerp_(self.snapshot.buffers, factor)


class Worker:
    """A `dpwa.algorithms.View` on arrays, which is one worker with its state.

    The parameters are in `array`, which can have any shape. The worker records all its requests and
    merges.
    """

    def __init__(
        self,
        number: int,
        names: Sequence[str],
        array: Floats,
        settings: SwarmSettings,
        algorithm: Algorithm,
        now: Callable[[], float],
    ) -> None:
        self.name = names[number]
        self.number = number
        self.group = settings.groups[number] if settings.groups else ""
        self.peers = [name for name in names if name != self.name]
        self.model = ArrayValues(array)
        self.buffers = ArrayValues(np.zeros(1))  # one number, in place of floating-point buffers
        self.rng = random.Random(f"{settings.seed}/{self.name}")
        self.fetch_probability = settings.fetch_probability
        self.keeps_local_step = settings.delta
        self.algorithm = algorithm
        self.asked: list[Ask] = []
        self.merged: list[tuple[str, float]] = []  # peers and factors
        self.loss: float | None = None  # of the last step
        self.clock = 0.0  # averaged at each merge, like the parameters
        self.updates = 0  # including the current update, and never averaged
        self.reports = LossReports(self.name, self.group, 1, LONG_S)
        self.transactions = Transactions(self.name, is_exclusive=True, remember_s=REMEMBER_S)
        self.mass = Mass()
        self.snapshot: ArraySnapshot | None = None
        self.exchanged: ArraySnapshot | None = None  # the last one that was in an exchange
        self.published: ArrayValues | None = None  # in this round
        self.inbox: list[ArrayArrival] = []
        self._rule = rule = interpolation(settings.interpolation)
        constant = {"value": settings.factor} if rule.name == "constant" else {}
        self._rule_options = rule.options(**constant)
        self.asks_leader = rule.asks_leader
        self._now = now
        self._mean_loss = RunningLoss(settings.loss_window)

    @property
    def now(self) -> float:
        return self._now()

    @property
    def x(self) -> Floats:
        return self.model.array

    @property
    def newest(self) -> ArraySnapshot:
        """The snapshot that peers read. Raise LookupError if the worker has published nothing."""
        if self.snapshot is None:
            raise LookupError(f"{self.name} has published nothing yet")
        return self.snapshot

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss, of all nodes or of the worker's group."""
        best = self.reports.leader(self._now(), None if of_all else self.group)
        return None if best is None else best.node

    def has_groups(self) -> bool:
        """Return whether the nodes in the reports belong to more than one group."""
        return self.reports.has_groups(self._now())

    def total_updates(self) -> float:
        """Return the number of updates of all nodes together, by the reports."""
        return self.reports.total_updates(self._now(), len(self.peers) + 1)

    def publish_snapshot(self) -> None:
        """Do the first half of `update_send`, which publishes a snapshot."""
        self.updates += 1
        self.clock += 1.0
        if self.algorithm.follows_leaders or self.asks_leader:
            self._mean_loss.add_loss(self.loss)
            self.reports.report_own_loss(self._mean_loss.mean, self.updates, self._now())
        values = self.algorithm.publishes(self)
        self.published = None if values is None else cast(ArrayValues, values).clone()
        if self.published is not None:
            progress = TrainingProgress(self.clock, self.loss)
            self.snapshot = ArraySnapshot(self.published, self.buffers.clone(), progress)
            self.mass.published()

    def asks(self) -> list[Ask]:
        """Return the algorithm's requests of this round, in their order."""
        ask = self.algorithm.asks(self)
        asks = [] if ask is None else [ask, *self.algorithm.more]
        self.asked += asks
        return asks

    def merge(self) -> None:
        """Do the work of `update_wait`, which ends the step and merges the arrivals."""
        self.algorithm.after_step(self)
        for arrival in self.inbox:
            self._merge(arrival)
        self.inbox.clear()

    def _merge(self, arrival: ArrayArrival) -> None:
        published = self.model if arrival.published is None else arrival.published
        received = ArrayReceived(
            arrival.peer, self._factor(arrival), published, arrival.snapshot, self
        )
        factor = self.algorithm.merge(self, received)
        self.clock = mixed_clock(self.clock, arrival.snapshot.progress.clock, factor)
        self.merged.append((arrival.peer, factor))

    def _factor(self, arrival: ArrayArrival) -> float:
        """Return the factor for a merge, and add the push-sum mass of the arrival to the worker."""
        if arrival.units:
            factor = self.mass.factor(arrival.units)
            self.mass.received(arrival.units)
            return factor
        own, theirs = TrainingProgress(self.clock, self.loss), arrival.snapshot.progress
        return merge_factor(self._rule, self._rule_options, own, theirs, 0.0)


Train = Callable[[Worker], float | None]
"""A function that takes a local step of a worker, in place, and returns the loss."""


class Swarm:
    """Workers w0, w1, ... with the same algorithm and with the parameters `starts`, `(N, ...)`."""

    def __init__(
        self, name: str, starts: Any, settings: SwarmSettings | None = None, **options: Any
    ) -> None:
        self.settings = settings or SwarmSettings()
        self.rng = random.Random(self.settings.seed)
        self.now = -1.0  # number of rounds before the current round
        self.workers: list[Worker] = []
        kind = algorithm(name)
        names = [f"w{number}" for number in range(len(starts))]
        for number, start in enumerate(starts):
            made, x = kind(kind.options_model(**options)), np.array(start, dtype=np.float64)
            worker = Worker(number, names, x, self.settings, made, lambda: self.now)
            self.workers.append(worker)
        self._by_name = {worker.name: worker for worker in self.workers}
        self._follows = kind.follows_leaders or self.workers[0].asks_leader
        self._neighbours: dict[tuple[int, int], list[Worker]] = {}
        self._transactions: list[tuple[Worker, Worker, bytes]] = []

    @property
    def x(self) -> Floats:
        """The parameters of all workers, shape `(N, ...)`."""
        return np.stack([worker.x for worker in self.workers])

    def round(self, train: Train | None = None, workers: Sequence[Worker] | None = None) -> None:
        """Do one round of all workers, or of some workers, in lockstep."""
        taking_part = self.workers if workers is None else workers
        self.publish_snapshots(taking_part)
        self.ask(taking_part)
        if train is not None:
            for worker in taking_part:
                worker.loss = train(worker)
        self.merge(taking_part)

    def publish_snapshots(self, workers: Sequence[Worker]) -> None:
        self.now += 1.0
        for worker in workers:
            worker.publish_snapshot()
        if self._follows:
            self._spread_news(workers)

    def ask(self, workers: Sequence[Worker]) -> None:
        """Send the requests of these workers. A peer that has published answers at once."""
        answers = {
            Terms.PULL: self._pull,
            Terms.EXCHANGE: self._exchange,
            Terms.SHARE: self._share,
        }
        for worker in workers:
            for ask in worker.asks():
                answers[ask.terms](worker, self._candidates(worker, ask))

    def merge(self, workers: Sequence[Worker]) -> None:
        """Commit all exchanges, merge the arrivals of these workers, and end their round."""
        for asker, answerer, transaction in self._transactions:
            _expect(asker.transactions.decide(transaction, commit=True, now=self.now))
            outcome = answerer.transactions.decided(transaction, commit=True)
            _expect(outcome is DecisionOutcome.COMMIT)
            asker.transactions.noted(transaction)
        self._transactions.clear()
        for worker in workers:
            worker.merge()
            if worker.algorithm.averages_buffers:
                others = [w.newest.buffers.array for w in self.workers if w is not worker]
                worker.buffers.array[...] = np.mean([worker.buffers.array, *others], axis=0)

    def _spread_news(self, speakers: Sequence[Worker]) -> None:
        said = [worker.reports.select_reports(self.now, worker.rng, most=1) for worker in speakers]
        for worker in self.workers:
            worker.reports.receive_reports([news for one in said for news in one], self.now)

    def _candidates(self, worker: Worker, ask: Ask) -> list[Worker]:
        """Return the peers for a request, in the order in which to try them."""
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
            worker.inbox.append(ArrayArrival(peers[0].name, peers[0].snapshot, worker.published))

    def _share(self, worker: Worker, peers: Sequence[Worker]) -> None:
        peer, transaction = peers[0], self.rng.randbytes(8)
        units = peer.mass.split_half(transaction)
        if units is not None and peer.snapshot is not None:
            worker.inbox.append(ArrayArrival(peer.name, peer.snapshot, worker.published, units))
            peer.mass.delivered(transaction)

    def _exchange(self, worker: Worker, peers: Sequence[Worker]) -> None:
        """Agree on an exchange with the first idle peer. Both merge after the decision.

        A snapshot takes part in one exchange at most.
        """
        if worker.newest is worker.exchanged:
            return
        for peer in peers:
            if peer.snapshot is None or peer.snapshot is peer.exchanged:
                continue
            transaction, expires = self.rng.randbytes(8), self.now + 1.0
            if not worker.transactions.propose(transaction, peer.name, self.now, expires):
                return
            answer = peer.transactions.accept(transaction, worker.name, self.now, expires)
            if answer is Acceptance.ACCEPTED:
                _expect(worker.transactions.agreed(transaction))
                _expect(peer.transactions.mark_ready(transaction))
                _expect(worker.transactions.prepared(transaction))
                for one, other in ((worker, peer), (peer, worker)):
                    own = one.exchanged = one.newest
                    one.inbox.append(ArrayArrival(other.name, other.newest, own.values))
                self._transactions.append((worker, peer, transaction))
                return
            worker.transactions.refused(transaction)


def _expect(happened: bool) -> None:
    """Raise RuntimeError if the ends of a transaction disagree, which the rules make impossible."""
    if not happened:
        raise RuntimeError("the two ends of a transaction disagree")
