"""Simulated nodes of symmetric exchange, on the real `Deals`; the model is one exact number."""

from __future__ import annotations

import random
from fractions import Fraction

from dpwa.policy.deals import Acceptance, Deals, Verdict
from support.lossy_networks import LossyNetwork

BUDGET_S = 2.0
REMEMBER_S = 60.0


class Node:
    """A node of symmetric exchange as the runtime has it: x is one number, exact."""

    def __init__(self, name, network, rng, remember_s=REMEMBER_S):
        self.name, self.network, self.rng = name, network, rng
        self.deals = Deals(name, is_exclusive=True, remember_s=remember_s)
        self.x = Fraction(rng.randrange(-1000, 1000))
        self.trained = self.x  # where it would be without gossip
        self.peers, self.own, self.theirs = {}, {}, {}  # by deal, as long as it is open
        self.asked, self.answered = set(), set()
        self.applied = {}  # by deal: the delta

    def send(self, now, peer, *message):
        self.network.send(now, peer, (self.name, *message))

    def propose(self, deal, peer, now):
        if self.deals.propose(deal, peer, now, now + BUDGET_S):
            self.asked.add(deal)
            self._publish(deal, peer)
            self.send(now, peer, "propose", deal)

    def train(self):
        step = self.rng.randrange(-10, 11)
        self.x += step
        self.trained += step

    def tick(self, now):
        for deal in self.deals.expire(now):
            self._drop(deal)
        for deal in list(self.asked & self.own.keys()):
            self._go_on_asking(deal, now)
        for deal in self.answered & self.own.keys():
            self._go_on_answering(deal, now)
        for deal, peer, commit in self.deals.undelivered(now):
            self.send(now, peer, "decided", deal, commit)

    def forget(self, peer, now):
        for deal in self.deals.forget_peer(peer, now):
            self._drop(deal)

    def receive(self, now, message):
        peer, kind, deal, *rest = message
        getattr(self, "on_" + kind)(now, peer, deal, *rest)

    def on_propose(self, now, peer, deal):
        acceptance = self.deals.accept(deal, peer, now, now + BUDGET_S)
        if acceptance is Acceptance.ACCEPTED:
            self.answered.add(deal)
            self._publish(deal, peer)
        self.send(now, peer, "refused" if acceptance is Acceptance.BUSY else "agreed", deal)
        self.tick(now)

    def on_refused(self, now, peer, deal):
        self.deals.refused(deal)

    def on_agreed(self, now, peer, deal):
        if not self.deals.agreed(deal):
            self.send(now, peer, "decided", deal, self._abort(deal, now))
        self.tick(now)

    def on_prepared(self, now, peer, deal):
        if not self.deals.prepared(deal):
            self.send(now, peer, "decided", deal, self._abort(deal, now))
        self.tick(now)

    def on_fetch(self, now, peer, deal):
        if deal in self.own:
            self.send(now, peer, "snapshot", deal, self.own[deal])

    def on_snapshot(self, now, peer, deal, x):
        if deal in self.own:
            self.theirs[deal] = x
        self.tick(now)

    def on_decided(self, now, peer, deal, commit):
        verdict = self.deals.decided(deal, commit)
        if verdict is Verdict.COMMIT:
            self._apply(deal)
        if verdict in (Verdict.COMMIT, Verdict.ABORT):
            self._drop(deal)
        self.send(now, peer, "noted", deal)

    def on_noted(self, now, peer, deal):
        self.deals.noted(deal)

    def _abort(self, deal, now):
        committed = self.deals.decide(deal, commit=False, now=now)
        self._drop(deal)
        return committed

    def _publish(self, deal, peer):
        self.peers[deal], self.own[deal] = peer, self.x

    def _go_on_asking(self, deal, now):
        if deal not in self.theirs:
            self.send(now, self.peers[deal], "propose", deal)
            self.send(now, self.peers[deal], "fetch", deal)
        if deal in self.theirs and self.deals.may_commit(deal, now):
            assert self.deals.decide(deal, commit=True, now=now)
            self._apply(deal)
            self._drop(deal)
        elif not self.deals.is_engaged(now):
            self._abort(deal, now)

    def _go_on_answering(self, deal, now):
        if deal not in self.theirs:
            self.send(now, self.peers[deal], "fetch", deal)
        elif self.deals.ready(deal):
            self.send(now, self.peers[deal], "prepared", deal)

    def _apply(self, deal):
        assert deal not in self.applied
        self.applied[deal] = (self.theirs[deal] - self.own[deal]) / 2
        self.x += self.applied[deal]

    def _drop(self, deal):
        for of_deals in (self.peers, self.own, self.theirs):
            of_deals.pop(deal, None)


def one_sided(nodes):
    """Deals between two of these nodes that only one of them has applied."""
    sides = {}
    for node in nodes:
        for deal in node.asked | node.answered:
            sides.setdefault(deal, []).append(node)
    both_here = {deal: pair for deal, pair in sides.items() if len(pair) == 2}
    found = set()
    for deal, (one, other) in both_here.items():
        if (deal in one.applied) != (deal in other.applied):
            found.add(deal)
        elif deal in one.applied:
            assert one.applied[deal] == -other.applied[deal]
    return found


def counted(nodes, what):
    return sum(node.deals.report()[what] for node in nodes)


class World:
    """Nodes on a lossy network, in simulated time."""

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
        assert not any(node.deals.is_engaged(self.now) for node in self.nodes.values())
        self.run(self.now + 2 * self.remember_s + 10, is_proposing=False)
        for node in self.nodes.values():
            assert node.deals.undelivered(self.now) == ()
            assert node.deals.expire(float("inf")) == ()
