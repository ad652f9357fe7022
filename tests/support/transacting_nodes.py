"""Nodes that make transactions, on real `Transactions`, in a network that does its worst."""

from __future__ import annotations

from dpwa.policy.transactions import DecisionOutcome, Transactions
from dpwa.virtual_network import VirtualNetwork

BUDGET_S = 2.0
REMEMBER_S = 60.0


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


class HostileNetwork(VirtualNetwork):
    """Keeps every message: whoever uses it says which one arrives, when, and how often."""

    def __init__(self, seed):
        super().__init__(seed)
        self.sent = []
        self.fresh = []  # those that have not arrived yet

    def send(self, sender, to, message):
        self.sent.append((sender, to, message))
        self.fresh.append((sender, to, message))


class World:
    """Nodes of one kind that live together, to whom anything may happen: `make(name, network)`."""

    def __init__(self, make, seed, names, pause_s):
        self.network, self._pause_s = HostileNetwork(seed), pause_s
        self.nodes = {name: make(name, self.network) for name in names}

    def step(self):
        """Let a message arrive, in any order; or an old one once more; or a node take its turn."""
        network, rng = self.network, self.network.rng
        network.run_for(rng.random() * self._pause_s)
        chance, name = rng.random(), rng.choice(list(self.nodes))
        if chance < 0.7 and network.fresh:
            self._arrives(*network.fresh.pop(rng.randrange(len(network.fresh))))
        elif chance < 0.8 and network.sent:
            self._arrives(*rng.choice(network.sent))
        elif chance < 0.9:
            self.nodes[name].take_turn()
        else:
            peer = rng.choice([other for other in self.nodes if other != name])
            self.nodes[name].propose(rng.randbytes(8), peer)

    def all_once_more(self):
        """Let the time of all proposals pass, and then all that was ever sent arrive again."""
        self.network.run_for(BUDGET_S)
        for node in self.nodes.values():
            node.tick()
        for message in list(self.network.sent):
            self._arrives(*message)

    def _arrives(self, sender, to, message):
        self.nodes[to].receive(sender, message)

    def counted(self, what):
        return sum(node.transactions.report()[what] for node in self.nodes.values())
