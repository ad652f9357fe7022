"""Collectives one after the other, while members are killed and come back, or are cut off."""

import random

import numpy as np
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from cases.situation import drawn_network
from dpwa.errors import CollectiveTimeoutError, LeftBehindError, PeerLost

TIMEOUT_S = 10.0
FAULTS_S = 20.0
LONGEST_FAULT_S = 6.0
OVER_WITHIN_S = 40.0  # after all faults: all who live are one group again, and have ended


class CollectiveCallers:
    """Nodes that add up their values again and again.

    Args:
        seed: of all chance.
    """

    def __init__(self, seed):
        self._rng = rng = random.Random(f"collectives {seed}")
        self.nodes = rng.randint(3, 6)
        self._thinks_s = rng.uniform(0.05, 0.5)
        self._values = rng.choice([1, 100_000])
        settings = {"collective_timeout_s": TIMEOUT_S}
        spec = run_spec(self.nodes, settings, seed=seed, seconds=1e6, network=drawn_network(rng))
        self.run = ProgramRun(spec, self._work)
        self.network, self.tcp, self.events = self.run.network, self.run.tcp, self.run.events
        self._sums = {}  # by members and number of the collective
        self._broken = []

    def play(self):
        """Let all of it happen; return what promises were broken."""
        run = self.run
        run.begin()
        for _ in range(self._rng.randint(1, 4)):
            act = self._rng.choice([self._kill, self._kill, self._cut])
            run.network.call_later(self._rng.uniform(0.0, FAULTS_S), act)
        run.network.run_until(FAULTS_S + LONGEST_FAULT_S)
        run.until_over(FAULTS_S + LONGEST_FAULT_S + OVER_WITHIN_S)
        living = [node.name for node in run.nodes if node.lives_now]
        for name in living:
            if name not in run.results:
                self._broken.append(f"{name}: {run.errors.get(name, 'hangs')}")
        run.end()
        return self._broken

    def _kill(self):
        living = [node for node in self.run.nodes if node.lives_now]
        if len(living) > 2:
            died = self._rng.choice(living)
            self.run.kill(died)
            if self._rng.random() < 0.7:
                back_s = self._rng.uniform(0.0, LONGEST_FAULT_S)
                self.network.call_later(back_s, lambda: self.run.start(died))

    def _cut(self):
        cut = self._rng.choice(self.run.nodes)
        self.network.partition({cut.name})
        self.network.call_later(self._rng.uniform(0.2, LONGEST_FAULT_S), self.network.heal)

    def _work(self, node, runtime, connection):
        while True:
            value = np.full(self._values, 2.0**node.index)
            wants_end = np.array([float(runtime.now() > FAULTS_S + LONGEST_FAULT_S)])
            try:
                _, count = connection.all_reduce([value, wants_end])
            except (PeerLost, LeftBehindError, CollectiveTimeoutError):
                continue
            self._take(node, connection, value, count)
            living = sum(other.lives_now for other in self.run.nodes)
            if wants_end[0] == count == living:
                return value[0]
            runtime.sleep(self._thinks_s)

    def _take(self, node, connection, value, count):
        total = int(value[0])
        if not (value == value[0]).all() or bin(total).count("1") != count:
            self._broken.append(f"{node.name} has {value} of {count}")
        if not total >> node.index & 1:
            self._broken.append(f"{node.name} has a sum without its own value: {total:b}")
        group = connection.collectives.runner("").group
        key = group.view.identity, group.number
        if self._sums.setdefault(key, total) != total:
            self._broken.append(f"{node.name} has {total:b}, others {self._sums[key]:b}")
