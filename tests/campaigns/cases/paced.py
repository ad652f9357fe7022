"""Rounds among those who keep pace, while nodes are killed, stand still, fall behind or are cut."""

import random

import numpy as np
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from cases.situation import drawn_network
from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload

TIMEOUT_S = 2.5
FAULTS_S = 20.0
LONGEST_FAULT_S = 6.0
OVER_WITHIN_S = 60.0  # after all faults: all who live keep pace, and have ended
# What a call may take at most: a death and a stall in each of its rounds, one after the other
LONGEST_CALL_S = 6 * TIMEOUT_S


class PacedCallers:
    """Nodes that each add the mean of their values to a state that those in pace have in common.

    Args:
        seed: of all chance.
        rounds: of a step, each with a part of the state.
    """

    def __init__(self, seed, rounds=1):
        self._rng = rng = random.Random(f"paced {seed}")
        self.nodes = rng.randint(2, 6)
        self._works_s = rng.uniform(0.05, 0.3)
        self._values = rng.choice([1, 100_000])
        self._rounds = rounds
        settings = {"timeout_ms": int(1000 * TIMEOUT_S)}
        spec = run_spec(self.nodes, settings, seed=seed, seconds=1e6, network=drawn_network(rng))
        self.run = ProgramRun(spec, self._work)
        self.network, self.tcp, self.events = self.run.network, self.run.tcp, self.run.events
        self._slowed = {}  # how many times as long a step takes, by index
        self._means = {}  # and the state before and after, by members and number of the round
        self._broken = []

    def play(self):
        """Let all of it happen; return what promises were broken."""
        run = self.run
        run.begin()
        for _ in range(self._rng.randint(1, 5)):
            act = self._rng.choice([self._kill, self._kill, self._cut, self._slow])
            run.network.call_later(self._rng.uniform(0.0, FAULTS_S), act)
        run.network.run_until(FAULTS_S + LONGEST_FAULT_S)
        run.until_over(FAULTS_S + LONGEST_FAULT_S + OVER_WITHIN_S)
        for name in [node.name for node in run.nodes if node.lives_now]:
            if name not in run.results:
                self._broken.append(f"{name}: {run.errors.get(name, 'hangs')}")
        run.end()
        return self._broken

    def _kill(self):
        living = [node for node in self.run.nodes if node.lives_now]
        if len(living) > 1:
            died = self._rng.choice(living)
            self.run.kill(died)
            if self._rng.random() < 0.7:
                back_s = self._rng.uniform(0.0, LONGEST_FAULT_S)
                self.network.call_later(back_s, lambda: self.run.start(died))

    def _cut(self):
        cut = self._rng.choice(self.run.nodes)
        self.network.partition({cut.name})
        self.network.call_later(self._rng.uniform(0.2, LONGEST_FAULT_S), self.network.heal)

    def _slow(self):
        slowed = self._rng.choice(self.run.nodes).index
        self._slowed[slowed] = self._rng.choice([1.3, 5, 40])
        end_s = self._rng.uniform(0.2, LONGEST_FAULT_S)
        self.network.call_later(end_s, lambda: self._slowed.pop(slowed, None))

    def _work(self, node, runtime, connection):
        state, done = np.zeros((self._rounds, self._values)), [0]

        def take_over(peer, given):
            done[0], state[:] = given[0], given[1]

        def timed(call, *arguments, **more):
            began = runtime.now()
            found = call(*arguments, **more)
            took_s = runtime.now() - began
            if took_s > LONGEST_CALL_S:
                self._broken.append(f"{node.name}: {call.__name__} took {took_s:.1f} s")
            return found

        rounds = PacedRounds(
            connection.collectives,
            "paced",
            TIMEOUT_S,
            runtime,
            step=lambda: done[0],
            copy=lambda: [done[0], state.copy()],
            take_over=take_over,
        )
        timed(rounds.begin)
        group = connection.collectives.runner("paced").group
        while True:
            runtime.sleep(self._works_s * self._slowed.get(node.index, 1.0))
            before = tuple(state[:, 0])
            for number in range(self._rounds):
                value = np.full(self._values, 2.0**node.index)
                wants_end = np.array([float(runtime.now() > FAULTS_S + LONGEST_FAULT_S)])
                is_last = number == self._rounds - 1
                count = timed(rounds.average, Payload([value, wants_end]), is_last=is_last)
                if count:
                    # Where all were killed, another group begins, with the same names and numbers.
                    lives = tuple(other.lives for other in self.run.nodes)
                    key = group.view.identity, group.number, lives
                    self._take(node, key, count, before, value)
                state[number] += value
            done[0] += 1
            living = sum(other.lives_now for other in self.run.nodes)
            if count == living and wants_end[0] == 1.0:
                return float(state[0, 0])
            timed(rounds.stepped)

    def _take(self, node, key, count, before, value):
        total = round(float(value[0]) * count)
        if not (value == value[0]).all() or bin(total).count("1") != count:
            self._broken.append(f"{node.name} has {value} of {count}")
        if not total >> node.index & 1:
            self._broken.append(f"{node.name} has a mean without its own value: {total:b}")
        mine = total, before
        if self._means.setdefault(key, mine) != mine:
            self._broken.append(f"{node.name} has {mine}, others {self._means[key]}, at {key[1]}")
