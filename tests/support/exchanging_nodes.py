"""Simulated nodes of symmetric exchange, on real `Transactions`; the model is one number."""

from __future__ import annotations

import random
from fractions import Fraction

from dpwa.policy.transactions import Acceptance, DecisionOutcome, Transactions
from support.lossy_networks import LossyNetwork

BUDGET_S = 2.0
REMEMBER_S = 60.0


class Node:
    """A node of symmetric exchange as the runtime has it: x is one number, exact."""

    def __init__(self, name, network, rng, remember_s=REMEMBER_S):
        self.name, self.network, self.rng = name, network, rng
        self.transactions = Transactions(name, is_exclusive=True, remember_s=remember_s)
        self.x = Fraction(rng.randrange(-1000, 1000))
        self.trained = self.x  # where it would be without gossip
        self.peers, self.own, self.theirs = {}, {}, {}  # by transaction, as long as it is open
        self.asked, self.answered = set(), set()
        self.applied = {}  # by transaction: the delta

    def send(self, now, peer, *message):
        self.network.send(now, peer, (self.name, *message))

    def propose(self, transaction, peer, now):
        if self.transactions.propose(transaction, peer, now, now + BUDGET_S):
            self.asked.add(transaction)
            self._publish(transaction, peer)
            self.send(now, peer, "propose", transaction)

    def train(self):
        step = self.rng.randrange(-10, 11)
        self.x += step
        self.trained += step

    def tick(self, now):
        for transaction in self.transactions.expire(now):
            self._drop(transaction)
        for transaction in list(self.asked & self.own.keys()):
            self._go_on_asking(transaction, now)
        for transaction in self.answered & self.own.keys():
            self._go_on_answering(transaction, now)
        for transaction, peer, commit in self.transactions.undelivered(now):
            self.send(now, peer, "decision", transaction, commit)

    def forget(self, peer, now):
        for transaction in self.transactions.forget_peer(peer, now):
            self._drop(transaction)

    def receive(self, now, message):
        peer, kind, transaction, *rest = message
        getattr(self, "on_" + kind)(now, peer, transaction, *rest)

    def on_propose(self, now, peer, transaction):
        acceptance = self.transactions.accept(transaction, peer, now, now + BUDGET_S)
        if acceptance is Acceptance.ACCEPTED:
            self.answered.add(transaction)
            self._publish(transaction, peer)
        self.send(now, peer, "refused" if acceptance is Acceptance.BUSY else "agreed", transaction)
        self.tick(now)

    def on_refused(self, now, peer, transaction):
        self.transactions.refused(transaction)

    def on_agreed(self, now, peer, transaction):
        if not self.transactions.agreed(transaction):
            self.send(now, peer, "decision", transaction, self._abort(transaction, now))
        self.tick(now)

    def on_prepared(self, now, peer, transaction):
        if not self.transactions.prepared(transaction):
            self.send(now, peer, "decision", transaction, self._abort(transaction, now))
        self.tick(now)

    def on_fetch(self, now, peer, transaction):
        if transaction in self.own:
            self.send(now, peer, "snapshot", transaction, self.own[transaction])

    def on_snapshot(self, now, peer, transaction, x):
        if transaction in self.own:
            self.theirs[transaction] = x
        self.tick(now)

    def on_decision(self, now, peer, transaction, commit):
        outcome = self.transactions.decided(transaction, commit)
        if outcome is DecisionOutcome.COMMIT:
            self._apply(transaction)
        if outcome in (DecisionOutcome.COMMIT, DecisionOutcome.ABORT):
            self._drop(transaction)
        self.send(now, peer, "decision_ack", transaction)

    def on_decision_ack(self, now, peer, transaction):
        self.transactions.noted(transaction)

    def _abort(self, transaction, now):
        committed = self.transactions.decide(transaction, commit=False, now=now)
        self._drop(transaction)
        return committed

    def _publish(self, transaction, peer):
        self.peers[transaction], self.own[transaction] = peer, self.x

    def _go_on_asking(self, transaction, now):
        if transaction not in self.theirs:
            self.send(now, self.peers[transaction], "propose", transaction)
            self.send(now, self.peers[transaction], "fetch", transaction)
        if transaction in self.theirs and self.transactions.may_commit(transaction, now):
            assert self.transactions.decide(transaction, commit=True, now=now)
            self._apply(transaction)
            self._drop(transaction)
        elif not self.transactions.is_engaged(now):
            self._abort(transaction, now)

    def _go_on_answering(self, transaction, now):
        if transaction not in self.theirs:
            self.send(now, self.peers[transaction], "fetch", transaction)
        elif self.transactions.ready(transaction):
            self.send(now, self.peers[transaction], "prepared", transaction)

    def _apply(self, transaction):
        assert transaction not in self.applied
        self.applied[transaction] = (self.theirs[transaction] - self.own[transaction]) / 2
        self.x += self.applied[transaction]

    def _drop(self, transaction):
        for of_transactions in (self.peers, self.own, self.theirs):
            of_transactions.pop(transaction, None)


def one_sided(nodes):
    """Transactions between two of these nodes that only one of them has applied."""
    sides = {}
    for node in nodes:
        for transaction in node.asked | node.answered:
            sides.setdefault(transaction, []).append(node)
    both_here = {transaction: pair for transaction, pair in sides.items() if len(pair) == 2}
    found = set()
    for transaction, (one, other) in both_here.items():
        if (transaction in one.applied) != (transaction in other.applied):
            found.add(transaction)
        elif transaction in one.applied:
            assert one.applied[transaction] == -other.applied[transaction]
    return found


def counted(nodes, what):
    return sum(node.transactions.report()[what] for node in nodes)


class World:
    TICK_S = 0.25

    def __init__(self, seed, nodes=5, remember_s=REMEMBER_S, **network):
        self.rng = random.Random(seed)
        self.network = LossyNetwork(self.rng, **network)
        self.remember_s = remember_s
        self.now = 0.0
        self.nodes = {}
        for name in [f"w{i}" for i in range(nodes)]:
            self.start(name)

    def start(self, name):
        self.nodes[name] = Node(name, self.network, self.rng, self.remember_s)

    def kill(self, is_restarted):
        name = self.rng.choice(sorted(self.nodes))
        del self.nodes[name]
        if is_restarted:
            for node in self.nodes.values():
                node.forget(name, self.now)
            self.start(name + "'")  # what is still sent to the old process does not reach it

    def run(self, until_s, is_proposing, deaths=0.0):
        while self.now < until_s:
            self.now += self.TICK_S
            if len(self.nodes) > 2 and self.rng.random() < deaths:
                self.kill(is_restarted=self.rng.random() < 0.5)
            for node in list(self.nodes.values()):
                self.take_turn(node, is_proposing)
            for at, name, message in self.network.due(self.now):
                if name in self.nodes:
                    self.nodes[name].receive(at, message)

    def take_turn(self, node, is_proposing):
        node.tick(self.now)
        if is_proposing:
            node.train()
            if self.rng.random() < 0.5:
                peer = self.rng.choice([name for name in self.nodes if name != node.name])
                node.propose(self.rng.randbytes(8), peer, self.now)

    def assert_all_waits_end(self):
        """After the last proposal: nobody is engaged beyond the deadline; then nothing is left."""
        assert not any(node.transactions.is_engaged(self.now) for node in self.nodes.values())
        self.run(self.now + 2 * self.remember_s + 10, is_proposing=False)
        for node in self.nodes.values():
            assert node.transactions.undelivered(self.now) == ()
            assert node.transactions.expire(float("inf")) == ()
