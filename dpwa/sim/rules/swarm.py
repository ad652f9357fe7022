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
from dpwa.policy.interpolation import interpolation
from dpwa.policy.topology import Topology, neighbours_of, topology
from dpwa.policy.transactions import Acceptance, DecisionOutcome
from dpwa.sim.rules.participant import ArrayArrival, Floats, NodeRules, Participant
from dpwa.types import NoOptions, StrictModel

LONG_S = 1e9


@dataclass(frozen=True)
class SwarmSettings:
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


class Worker(Participant):
    """A node of a swarm; it remembers all that it has asked and merged."""

    keeps_history = True


Train = Callable[[Worker], float | None]
"""Takes a local step, in place; returns the loss."""


class Swarm:
    """Workers w0, w1, ... that run the same algorithm; they begin at `starts`, shape `(N, ...)`."""

    def __init__(
        self, name: str, starts: Any, settings: SwarmSettings | None = None, **options: Any
    ) -> None:
        self.settings = settings or SwarmSettings()
        self.rng = random.Random(self.settings.seed)
        self.now = -1.0  # rounds that were begun before this one
        self.workers: list[Worker] = []
        kind = algorithm(name)
        rules = self._rules_of(kind, options)
        names = [f"w{number}" for number in range(len(starts))]
        for number, start in enumerate(starts):
            worker = Worker(
                number,
                names,
                np.array(start, dtype=np.float64),
                rules,
                group=self.settings.groups[number] if self.settings.groups else "",
                seed=self.settings.seed,
                now=lambda: self.now,
            )
            self.workers.append(worker)
        self._by_name = {worker.name: worker for worker in self.workers}
        self._follows = kind.follows_leaders or self.workers[0].asks_leader
        self._neighbours: dict[tuple[int, int], list[Worker]] = {}
        self._transactions: list[tuple[Worker, Worker, bytes]] = []

    @property
    def x(self) -> Floats:
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
            for ask in worker.asks():
                answers[ask.terms](worker, self._candidates(worker, ask))

    def merge(self, workers: Sequence[Worker]) -> None:
        """End the round: what has come is merged."""
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

    def _rules_of(self, kind: type[Algorithm], options: dict[str, Any]) -> NodeRules:
        settings = self.settings
        rule = interpolation(settings.interpolation)
        constant = {"value": settings.factor} if rule.name == "constant" else {}
        return NodeRules(
            make_algorithm=lambda: kind(kind.options_model(**options)),
            rule=rule,
            rule_options=rule.options(**constant),
            divergence_threshold=0.0,
            fetch_probability=settings.fetch_probability,
            keeps_local_step=settings.delta,
            loss_window=settings.loss_window,
            forget_after_s=LONG_S,
            minds_beginners=False,
        )

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
            worker.inbox.append(ArrayArrival(peers[0], peers[0].snapshot, worker.published))

    def _share(self, worker: Worker, peers: Sequence[Worker]) -> None:
        peer, transaction = peers[0], self.rng.randbytes(8)
        units = peer.mass.share(transaction)
        if units is not None and peer.snapshot is not None:
            worker.inbox.append(ArrayArrival(peer, peer.snapshot, worker.published, units=units))
            peer.mass.delivered(transaction)

    def _exchange(self, worker: Worker, peers: Sequence[Worker]) -> None:
        """Agree on one with the first who is not engaged; both merge when it is decided."""
        for peer in peers:
            transaction, expires = self.rng.randbytes(8), self.now + 1.0
            if not worker.transactions.propose(transaction, peer.name, self.now, expires):
                return
            answer = peer.transactions.accept(transaction, worker.name, self.now, expires)
            if answer is Acceptance.ACCEPTED:
                _expect(worker.transactions.agreed(transaction))
                _expect(peer.transactions.ready(transaction))
                _expect(worker.transactions.prepared(transaction))
                worker.inbox.append(ArrayArrival(peer, peer.newest, worker.published))
                peer.inbox.append(ArrayArrival(worker, worker.newest, peer.published))
                self._transactions.append((worker, peer, transaction))
                return
            worker.transactions.refused(transaction)


def _expect(happened: bool) -> None:
    """Stop where two ends of a transaction do not agree, which the rules rule out."""
    if not happened:
        raise RuntimeError("the two ends of a transaction are out of step")
