"""Rounds among those who keep pace, while nodes are killed, stand still, fall behind or are cut."""

import numpy as np

from cases.situation import FAULTS_S, LONGEST_FAULT_S, FaultyCallers
from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload

TIMEOUT_S = 2.5
LONGEST_TRAVEL_S = 1.0  # the values of a round, over slow networks, beside the timeout


class PacedCallers(FaultyCallers):
    """Nodes that each add the mean of their values to a state that those in pace have in common.

    Args:
        seed: of all chance.
        rounds: of a step, each with a part of the state.
    """

    kind, settings = "paced", {"timeout_ms": int(1000 * TIMEOUT_S)}
    fewest, longest_pause_s, most_faults, fewest_living = 2, 0.3, 5, 1
    over_within_s = 60.0  # then they keep pace

    def __init__(self, seed, rounds=1):
        super().__init__(seed)
        self._rounds = rounds
        self._longest_update_s = TIMEOUT_S + rounds * LONGEST_TRAVEL_S
        self._slowed = {}  # how many times as long a step takes, by index
        self._means = {}  # and the state before and after, by members and number of the round
        self._faults.append(self._slow)

    def _slow(self):
        slowed = self._rng.choice(self.run.nodes).index
        self._slowed[slowed] = self._rng.choice([1.3, 5, 40])
        end_s = self._rng.uniform(0.2, LONGEST_FAULT_S)
        self.network.call_later(end_s, lambda: self._slowed.pop(slowed, None))

    def _work(self, node, runtime, connection):
        state, done, waited_s = np.zeros((self._rounds, self._values)), [0], [0.0]

        def take_over(peer, given):
            done[0], state[:] = given[0], given[1]

        def timed(call, *arguments, **more):
            began = runtime.now()
            found = call(*arguments, **more)
            waited_s[0] += runtime.now() - began
            if waited_s[0] > self._longest_update_s:
                self._broken.append(f"{node.name}: up to {call.__name__} {waited_s[0]:.1f} s")
            if call in (rounds.begin_rounds, rounds.stepped):
                waited_s[0] = 0.0
            return found

        rounds = PacedRounds(
            connection.collectives,
            "paced",
            TIMEOUT_S,
            step=lambda: done[0],
            copy=lambda: [done[0], state.copy()],
            take_over=take_over,
        )
        timed(rounds.begin_rounds)
        group = connection.collectives.group("paced")
        while True:
            runtime.sleep(self._pause_s * self._slowed.get(node.index, 1.0))
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
