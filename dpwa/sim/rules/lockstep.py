"""All living nodes take each round together, node by node.

A round publishes, asks, trains and merges, as `Swarm` does. What is asked for comes in the same
round, or not at all; the round lasts until the slowest node has its step and what it waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import Ask, Terms
from dpwa.policy.transactions import Acceptance
from dpwa.sim.churn import NodeChange, NodeChangeKind
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.fetches import AskRules, shard_of
from dpwa.sim.rules.fleet import Fleet, no_search_for_cycles
from dpwa.sim.rules.participant import WHOLE, ArrayArrival, ArraySnapshot, Participant
from dpwa.sim.rules.wire_sizes import Links, WireSizes
from dpwa.sim.samples import Moment, RunRecorder
from dpwa.sim.scenario import RunSpec
from dpwa.sim.tasks import TrainingTask
from dpwa.wire.limits import TRANSACTION_BYTES


class _Fetch(NamedTuple):
    """What is on its way to a node in this round."""

    reader: Participant
    server: Participant
    snapshot: ArraySnapshot
    began_s: float  # after the beginning of the round
    turns: int  # times back and forth before it begins
    part: slice = WHOLE
    transaction: bytes = b""
    units: int = 0


class LockstepRounds:
    """All nodes of a run; they begin at `x`, shape (N, D)."""

    def __init__(
        self,
        spec: RunSpec,
        conditions: Conditions,
        task: TrainingTask,
        sizes: WireSizes,
        x: NDArray[np.float64],
    ) -> None:
        config = spec.config
        self.time_s = 0.0
        self.rounds = 0
        self.fleet = Fleet(spec, conditions, task, x, lambda: self.time_s)
        self._conditions = conditions
        self._sizes = sizes
        self._links = Links(conditions, sizes)
        self._timeout_s = config.timeout_ms / 1000
        self._rules = AskRules(config, type(self.fleet.participants[0].algorithm))
        self._changes: Iterator[NodeChange] = conditions.events()
        self._next = next(self._changes, None)
        self._fetches: list[_Fetch] = []
        self._ends_s = math.inf
        self._lost_s = np.zeros(len(x))  # what each node waits in vain in this round

    def run(self, recorder: RunRecorder, rounds: float, seconds: float) -> Moment:
        """Take rounds until `rounds` or `seconds` are over, or the recorder has enough."""
        with no_search_for_cycles():
            self._go_on(recorder, rounds, seconds)
        return self._moment()

    def _go_on(self, recorder: RunRecorder, rounds: float, seconds: float) -> None:
        self._ends_s = seconds
        self._change_nodes()
        while recorder.observe(self._moment()) and self.rounds < rounds and self.time_s < seconds:
            if not self.fleet.living:
                if self._next is None or self._next.time_s >= seconds:
                    break
                self.time_s = self._next.time_s
            else:
                self._round()
            self._change_nodes()

    def _moment(self) -> Moment:
        return self.fleet.moment(self.time_s)

    def _change_nodes(self) -> None:
        fleet, returns = self.fleet, False
        while self._next is not None and self._next.time_s <= self.time_s:
            donor = fleet.change(self._next)
            if donor is not None:
                fleet.take_over(self._next.node, donor)
                fleet.count(donor.number, self._next.node, self._sizes.answer)
            returns = returns or self._next.kind is NodeChangeKind.RETURN
            self._next = next(self._changes, None)
        for book in fleet.books if returns else ():
            book.look_again(fleet.incarnations)

    def _round(self) -> None:
        fleet, alive = self.fleet, list(self.fleet.alive)
        self._lost_s[:] = 0.0
        for node in alive:
            node.publish()
        if alive[0].follows:
            self._trade_news(alive)
        asking = alive.copy()
        fleet.rng.shuffle(asking)
        for node in asking:
            for ask in node.asks():
                self._ask(node, ask)
        living = np.flatnonzero(fleet.is_alive)
        if self._pass_time(living, self._fetched()):
            fleet.step(living)
            for node in alive:
                node.merge()
            self.rounds += 1

    def _trade_news(self, alive: list[Participant]) -> None:
        for node in alive:
            other = self.fleet.rng.choice(alive)
            if other is not node and self._reaches(node, other):
                self._hear_each_other(node, other)

    def _hear_each_other(self, one: Participant, other: Participant) -> None:
        now, rng = self.time_s, self.fleet.rng
        said, answer = one.reports.news(now, rng), other.reports.news(now, rng)
        other.reports.hear(said, now)
        one.reports.hear(answer, now)

    def _reaches(self, one: Participant, other: Participant) -> bool:
        return self._conditions.reachable(one.number, other.number, self.time_s)

    def _ask(self, node: Participant, ask: Ask) -> None:
        """Ask one after the other, as long as there is time."""
        fleet, number = self.fleet, node.number
        book, tried, turns = fleet.books[number], set[str](), 0
        while True:
            name = ask.peer
            if name is None:
                budget_s = self._timeout_s - self._lost_s[number]
                name = book.choose(self.time_s, node.updates - 1, tried, budget_s)
            if name is None or name in tried:
                return
            tried.add(name)
            peer = fleet.participants[fleet.index[name]]
            if self._conditions.is_cut(number, peer.number, self.time_s):
                self._lost_s[number] += book.patience_s(name, self._timeout_s)
                book.failed(name, self.time_s, is_late=True)
                if self._lost_s[number] >= self._timeout_s:
                    return
            elif not fleet.is_alive[peer.number] or not self._reaches(node, peer):
                book.down(name, fleet.incarnations[peer.number])
            elif self._is_agreed(node, peer, ask, turns):
                if node.follows:
                    self._hear_each_other(node, peer)
                return
            turns += 1

    def _is_agreed(self, node: Participant, peer: Participant, ask: Ask, turns: int) -> bool:
        """Ask a living peer; return whether it gives its snapshot."""
        snapshot, lost_s = peer.snapshot, float(self._lost_s[node.number])
        if ask.terms is Terms.EXCHANGE:
            return self._exchange(node, peer, turns)
        self.fleet.count(node.number, peer.number, self._sizes.request)
        book, part = self.fleet.books[node.number], self._rules.part(node, ask)
        is_known = snapshot is not None and self._rules.is_known(
            book, peer.name, snapshot, ask, part
        )
        if snapshot is None or is_known:
            self.fleet.count(peer.number, node.number, self._sizes.refusal)
            if is_known:
                book.succeeded(peer.name)
            return False
        fetch = _Fetch(node, peer, snapshot, lost_s, turns, part)
        if ask.terms is Terms.SHARE:
            transaction = self.fleet.rng.randbytes(TRANSACTION_BYTES)
            units = peer.mass.share(transaction)
            if units is None:
                return False
            fetch = fetch._replace(transaction=transaction, units=units)
        self._fetches.append(fetch)
        return True

    def _exchange(self, node: Participant, peer: Participant, turns: int) -> bool:
        fleet, sizes, now = self.fleet, self._sizes, self.time_s
        transaction = fleet.rng.randbytes(TRANSACTION_BYTES)
        expires = now + self._timeout_s
        if not node.transactions.propose(transaction, peer.name, now, expires):
            return True  # it is in another exchange itself
        fleet.count(node.number, peer.number, sizes.asks_exchange)
        # Both ends fetch, so each must be able to connect to the other.
        accepts = peer.snapshot is not None and node.snapshot is not None
        accepts = accepts and not self._conditions.is_behind_nat(node.number)
        if accepts:
            answer = peer.transactions.accept(transaction, node.name, now, expires)
            accepts = answer is Acceptance.ACCEPTED
        if not accepts:
            fleet.count(peer.number, node.number, sizes.declines)
            node.transactions.refused(transaction)
            return False
        fleet.count(peer.number, node.number, sizes.agrees + sizes.prepares + sizes.notes)
        fleet.count(node.number, peer.number, sizes.decides)
        node.transactions.agreed(transaction)
        lost_s = float(self._lost_s[node.number])
        for reader, server in ((node, peer), (peer, node)):
            fleet.count(reader.number, server.number, sizes.request)
            fetch = _Fetch(reader, server, server.newest, lost_s, turns + 2, WHOLE, transaction)
            self._fetches.append(fetch)
        return True

    def _fetched(self) -> NDArray[np.float64]:
        """Deliver what comes in time; return how long each node had to wait for it, shape (N,)."""
        fleet, fetches, self._fetches = self.fleet, self._fetches, []
        waits_s: NDArray[np.float64] = self._lost_s.copy()
        if not fetches:
            return waits_s
        readers = np.array([fetch.reader.number for fetch in fetches])
        servers = np.array([fetch.server.number for fetch in fetches])
        network_s = self._links.fetch_s(readers, servers)
        turn_s = 2 * self._conditions.latencies_s(readers, servers)
        turns = np.array([fetch.turns for fetch in fetches])
        fetch_s = network_s + turn_s * turns + [fetch.began_s for fetch in fetches]
        late = fetch_s > self._timeout_s
        too_late = {f.transaction for f, is_late in zip(fetches, late, strict=True) if is_late}
        too_late.discard(b"")  # of plain pulls
        np.maximum.at(waits_s, readers, np.minimum(fetch_s, self._timeout_s))
        for at, fetch in enumerate(fetches):
            fleet.count(fetch.server.number, fetch.reader.number, self._sizes.answer)
            fleet.served[fetch.server.number] += 1
            is_late = bool(late[at]) or fetch.transaction in too_late
            self._settle(fetch, is_late, float(turn_s[at]), float(network_s[at]))
        return waits_s

    def _settle(self, fetch: _Fetch, is_late: bool, answered_s: float, taken_s: float) -> None:
        """Merge what was fetched in this round, or give it up."""
        reader, server, transaction = fetch.reader, fetch.server, fetch.transaction
        book = self.fleet.books[reader.number]
        if transaction and not fetch.units:
            self._decide(fetch, commit=not is_late)
        if is_late:
            book.failed(server.name, self.time_s, is_late=True)
            if fetch.units:
                server.mass.returned(transaction)  # it has merged nothing since then
            return
        book.fetched(server.name, self._sizes.answer, answered_s, taken_s - answered_s)
        if fetch.units:
            server.mass.delivered(transaction)
        book.merged.add(server.name, fetch.snapshot.version, shard_of(fetch.part))
        arrival = ArrayArrival(server, fetch.snapshot, reader.published, fetch.part, fetch.units)
        reader.inbox.append(arrival)

    def _decide(self, fetch: _Fetch, *, commit: bool) -> None:
        """Take one of the two steps to the end of an exchange: first of who has asked."""
        asker, answerer = fetch.reader, fetch.server
        if asker.transactions.prepared(fetch.transaction):
            answerer.transactions.ready(fetch.transaction)
            made = asker.transactions.decide(fetch.transaction, commit=commit, now=self.time_s)
            answerer.transactions.decided(fetch.transaction, commit=made)
            asker.transactions.noted(fetch.transaction)

    def _pass_time(self, living: NDArray[np.int64], waits_s: NDArray[np.float64]) -> bool:
        """Let a round pass; return whether it ends in time."""
        fleet = self.fleet
        step_s = self._conditions.steps_s(living, fleet.updates[living], self.time_s)
        step_s = step_s + self._conditions.own_work_s
        round_s = float(np.maximum(step_s, waits_s[living]).max())
        if self.time_s + round_s > self._ends_s:
            self.time_s = self._ends_s
            return False
        fleet.trained_s[living] += step_s
        fleet.waited_s[living] += round_s - step_s
        self.time_s += round_s
        return True
