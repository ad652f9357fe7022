"""Rounds among those who keep pace, with other calls in between; nodes are late at times.

The other calls are collectives of users, barriers of tables, and epochs of a data set that nodes
share. All nodes live, and call the same. So no call fails, all have the same state at the end, and
none waits for much longer than nodes were late since the last call that all have made: each may be
late for several steps in between, and the others may wait for one after another.
"""

import random

import numpy as np

from cases.situation import FaultyCallers
from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload
from dpwa.dataset.range_table import DatasetRanges, RangeTable
from dpwa.tables.node_tables import Tables

TIMEOUT_S = 20.0  # more than nodes that live may have to wait for each other
LATE_S = 3.0
WAITED_S = 3.0  # beyond the time for which nodes were late, also over slow networks
STEPS, LAST_STEPS = 20, 300
SETTINGS = {"timeout_ms": int(1000 * TIMEOUT_S), "collective_timeout_s": TIMEOUT_S}
RANGES = DatasetRanges(dataset_size=12, range_size=1, shuffle=False, seed=0)
CALLS = {
    "barrier": lambda node, tag: node.barrier(tag=tag),
    "all_reduce": lambda node, tag: node.all_reduce(np.ones(3), "mean", tag=tag),
    "broadcast": lambda node, tag: node.broadcast(np.ones(2), "n0", tag=tag),
    "gather": lambda node, tag: node.all_gather([node.name], tag=tag),
    "join": lambda node, tag: node.join(tag=tag),
}


class MixedCallers(FaultyCallers):
    """Nodes that train together, and make other calls after some steps.

    Args:
        seed: of all chance.
    """

    kind, settings = "waits", SETTINGS
    fewest, longest_pause_s, most_faults, fewest_living = 2, 0.3, 1, 6
    over_within_s = 400.0

    def __init__(self, seed):
        super().__init__(seed)
        self._faults = [lambda: None]
        self._seed, rng = seed, self._rng
        self._late = []  # until when a node is late, and for how many seconds
        kinds = [*CALLS, *rng.choice([[], ["table barrier"], ["epoch"]])]
        self._calls = [
            (rng.choice(kinds), rng.choice(["", "a", "b"])) if rng.random() < 0.5 else None
            for _ in range(STEPS)
        ]

    def play(self):
        broken = super().play()
        if len({repr(state) for state in self.run.results.values()}) > 1:
            broken.append(f"states differ at the end: {self.run.results}")
        return broken

    def _work(self, node, runtime, connection):
        rng = random.Random(f"{self.kind} {self._seed} {node.index}")
        runtime.sleep(rng.uniform(0.0, 4.0))
        state, done, worked_s, called_at = np.zeros(1), [0], [0.0], [0.0]
        uses_tables = any(call and call[0] not in CALLS for call in self._calls)
        tables = Tables(connection) if uses_tables else None
        ranges = RangeTable(tables, RANGES, replicas=1, lease_s=600.0) if uses_tables else None

        def take_over(peer, given):
            done[0], state[0] = given

        rounds = PacedRounds(
            connection.collectives,
            "paced",
            TIMEOUT_S,
            step=lambda: done[0],
            copy=lambda: [done[0], float(state[0])],
            take_over=take_over,
        )
        rounds.begin_rounds()

        def watched(call, what):
            began, worked_before_s, together_at = runtime.now(), worked_s[0], called_at[0]
            found = call()
            waited_s = runtime.now() - began - (worked_s[0] - worked_before_s)
            late_s = sum(s for ended_at, s in self._late if ended_at > together_at)
            if waited_s > late_s + WAITED_S:
                self._broken.append(
                    f"{node.name} has waited for {waited_s:.1f} s in {what}, late {late_s:.1f} s"
                )
            return found

        def step(pause_s, *, leaves_out=False):
            worked_s[0] += pause_s
            if pause_s > self._pause_s:
                self._late.append((runtime.now() + pause_s, pause_s))
            runtime.sleep(pause_s)
            if not leaves_out:
                value = np.full(1, 2.0**node.index)
                rounds.average(Payload(value))
                state[0] += value[0]
            done[0] += 1
            rounds.stepped(0 if leaves_out else 1)

        def epoch(number):
            ranges.begin_epoch(number)
            while (taken := watched(ranges.wait_for_range, "an epoch")) is not None:
                watched(lambda: step(self._pause_s), "a step of an epoch")
                ranges.acknowledge(taken)

        def other(kind, tag):
            if kind == "table barrier":
                tables.barrier()
            else:
                CALLS[kind](connection, tag)
            called_at[0] = runtime.now()

        for number, call in enumerate(self._calls):
            is_late, leaves_out = rng.random() < 0.1, rng.random() < 0.05
            pause_s = rng.uniform(0.8, LATE_S) if is_late else self._pause_s
            watched(lambda: step(pause_s, leaves_out=leaves_out), "a step")  # noqa: B023
            if call is not None:
                if call[0] == "epoch":
                    epoch(number)
                else:
                    watched(lambda: other(*call), call)  # noqa: B023
        for _ in range(LAST_STEPS):
            step(self._pause_s)
            members = rounds.report().in_pace
            said = connection.all_gather(len(members), tag="end")
            if set(said.values()) == {self.nodes}:
                return float(state[0]), done[0]
        self._broken.append(f"{node.name} is not among all others again")
        return None
