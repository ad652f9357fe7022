"""Nodes that make transactions in a virtual network, on real `Transactions`."""

from __future__ import annotations

from dpwa.policy.transactions import DecisionOutcome, Transactions
from dpwa.virtual_network import Link, VirtualNetwork

BUDGET_S = 2.0
REMEMBER_S = 60.0
MAX_DELAY_S = 8.0
TICK_S = 0.25


class Node:
    """What both algorithms do; each one `commit`s and `drop`s what a transaction is about."""

    def __init__(self, name, network, *, is_exclusive, remember_s=REMEMBER_S):
        self.name, self.network, self.rng = name, network, network.rng
        self.transactions = Transactions(name, is_exclusive=is_exclusive, remember_s=remember_s)
        self.asked = {}  # whom, by transaction
        network.add(name, self.receive)

    @property
    def now(self):
        return self.network.clock.now()

    def send(self, peer, *message):
        self.network.send(self.name, peer, message)

    def receive(self, peer, message):
        kind, transaction, *rest = message
        getattr(self, "on_" + kind)(peer, transaction, *rest)

    def propose(self, transaction, peer):
        is_made = self.transactions.propose(transaction, peer, self.now, self.now + BUDGET_S)
        if is_made:
            self.asked[transaction] = peer
            self.send(peer, "propose", transaction)
        return is_made

    def accept(self, transaction, peer):
        return self.transactions.accept(transaction, peer, self.now, self.now + BUDGET_S)

    def tick(self):
        for transaction in self.transactions.expire(self.now):
            self.drop(transaction)
        for transaction, peer, commit in self.transactions.undelivered(self.now):
            self.send(peer, "decision", transaction, commit)

    def decide(self, transaction, *, commit):
        return self.transactions.decide(transaction, commit=commit, now=self.now)

    def on_refused(self, peer, transaction):
        self.transactions.refused(transaction)

    def on_decision(self, peer, transaction, commit):
        outcome = self.transactions.decided(transaction, commit)
        if outcome is DecisionOutcome.COMMIT:
            self.commit(transaction)
        elif outcome is DecisionOutcome.ABORT:
            self.drop(transaction)
        self.send(peer, "decision_ack", transaction)

    def on_decision_ack(self, peer, transaction):
        self.transactions.noted(transaction)


class World:
    """Nodes of one kind that live together: `make(name, network)`."""

    def __init__(self, make, seed, nodes, *, loss=0.0, duplication=0.0, delay_s=0.0):
        self.make = make
        self.network = VirtualNetwork(seed, Link(0.0, delay_s, loss, duplication))
        self.rng = self.network.rng
        self.nodes = {}
        for name in [f"w{i}" for i in range(nodes)]:
            self.start(name)

    def start(self, name):
        self.nodes[name] = self.make(name, self.network)

    def kill(self, *, is_restarted):
        name = self.rng.choice(sorted(self.nodes))
        del self.nodes[name]
        self.network.set_down(name)
        if is_restarted:
            for node in self.nodes.values():
                node.forget(name)
            self.start(name + "'")  # what is still sent to the old process does not reach it

    def mend(self):
        self.network.set_link(Link(0.0))
        self.network.heal()

    def run(self, until_s, *, is_proposing, deaths=0.0, look=lambda: None):
        while self.network.clock.now() < until_s:
            if len(self.nodes) > 2 and self.rng.random() < deaths:
                self.kill(is_restarted=self.rng.random() < 0.5)
            for node in list(self.nodes.values()):
                node.take_turn(is_proposing)
                if is_proposing and self.rng.random() < 0.5:
                    peer = self.rng.choice([name for name in self.nodes if name != node.name])
                    node.propose(self.rng.randbytes(8), peer)
            self.network.run_for(TICK_S)
            look()

    def counted(self, what):
        return sum(node.transactions.report()[what] for node in self.nodes.values())
