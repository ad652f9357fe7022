"""Workers of tables that start far apart; in some runs one is killed, cut off, or stalls."""

import random
from functools import partial

from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from cases.situation import drawn_network
from dpwa.errors import TableLostError, TableTimeoutError
from dpwa.tables.node_tables import Tables

ROUNDS = 4
SIZE = 12
BASE = 16  # in which the digits of a value say how often each worker has added to it
LATEST_S = 10.0
TIMEOUT_S = 30.0
LONGEST_CUT_S = 8.0
LONGEST_STALL_S = 4.0
ASKED_WITHIN_S = 6.0  # who waits for the others asks them
OVER_WITHIN_S = LATEST_S + LONGEST_CUT_S + 2 * LONGEST_STALL_S + TIMEOUT_S


class TableWorkers:
    """Workers that make tables and add to them, each in its own time.

    Args:
        seed: of all chance.
    """

    def __init__(self, seed):
        self._rng = rng = random.Random(f"tables {seed}")
        self.workers = rng.randint(3, 6)
        self._is_sync = rng.random() < 0.5
        self._starts = [rng.uniform(0.0, rng.choice([1.0, LATEST_S])) for _ in range(self.workers)]
        self._pauses = [rng.choice([0.0, 0.0, rng.uniform(0.0, 2.0)]) for _ in range(self.workers)]
        self._thinks_s = rng.choice([0.0, rng.uniform(0.0, 0.5)])
        self._fault = rng.choice(["none", "kill", "cut"])
        self._victim = rng.randrange(self.workers)
        self._stalls = self._drawn_stalls(random.Random(f"tables {seed} stalls"))
        self._left_out = None  # whose additions need not all be there
        self._has_begun = False  # the victim, before it was cut off or later
        self._healed_at = 0.0
        self._ended = {}  # when, by index
        settings = {"collective_timeout_s": TIMEOUT_S}
        spec = run_spec(self.workers, settings, seed=seed, seconds=1e6, network=drawn_network(rng))
        self.run = ProgramRun(spec, self._work)
        self.network, self.tcp, self.events = self.run.network, self.run.tcp, self.run.events

    def _drawn_stalls(self, rng):
        """Draw who stalls when for how long; it is never the victim: that is to be left out."""
        others = [index for index in range(self.workers) if index != self._victim]
        stalling = rng.sample(others, rng.choice([0, 1, 1, min(2, len(others))]))
        begins = max(self._starts) * rng.choice([1.0, rng.random()])
        return [
            (begins + rng.uniform(-1.0, 3.0), index, rng.uniform(0.5, LONGEST_STALL_S))
            for index in stalling
        ]

    def play(self):
        """Let all of it happen; return what promises were broken."""
        run = self.run
        run.plan_events()
        late_s = self._rng.uniform(0.0, self._rng.choice([0.5, 3.0]))
        if self._fault != "none":
            act = self._kill if self._fault == "kill" else self._cut
            run.network.call_later(max(self._starts) + late_s, act)
        for at_s, index, stall_s in self._stalls:
            stall = partial(run.stall, run.nodes[index], stall_s)
            run.network.call_later(max(0.0, at_s), stall)
        run.network.run_until(LATEST_S + 4.0)  # all have started, and what is to happen has
        run.until_over(OVER_WITHIN_S)
        broken = self._judge()
        run.end_run()
        return broken

    def _kill(self):
        node = self.run.nodes[self._victim]
        if node.name not in self.run.results:
            self._left_out = self._victim
            self.run.kill(node)

    def _cut(self):
        self.network.partition({self.run.nodes[self._victim].name})
        self.network.call_later(self._rng.uniform(0.2, LONGEST_CUT_S), self._heal)

    def _heal(self):
        self._healed_at = self.network.clock.now()
        self.network.heal()

    def _work(self, node, runtime, connection):
        """Make two tables and add to them, round by round; return what was seen."""
        me, read = node.index, []
        runtime.sleep(self._starts[me])
        tables = Tables(connection, sync=self._is_sync)
        runtime.sleep(self._pauses[me])
        first = [(me + 1) * BASE**self.workers] * SIZE
        table = tables.array(SIZE, first, dtype="float64")
        self._has_begun |= me == self._victim
        matrix = tables.matrix(2, 3, dtype="float64")
        wait = (lambda: None) if self._is_sync else tables.barrier
        wait()
        for _ in range(ROUNDS):
            table.add([BASE**me] * SIZE)
            matrix.add([[BASE**me] * 3], [me % 2])
            runtime.sleep(self._thinks_s)
            wait()
            read.append(table.get().tolist())
            wait()
        tables.barrier()
        rows = matrix.get().tolist()
        members = list(tables.members)  # whoever has passed the last barrier leaves
        tables.barrier()
        tables.close()
        self._ended[me] = runtime.now()
        return {"read": read, "rows": rows, "members": members}

    def _is_told(self, error):
        """Tell whether the victim knows that it was left out, by whoever was there to say so."""
        if isinstance(error, TableTimeoutError) and not self._has_begun:
            # It waits for the others as at any start, and they have ended.
            return max(self._ended.values()) < self._healed_at + ASKED_WITHIN_S
        return isinstance(error, TableLostError)

    def _judge(self):
        run, broken = self.run, []
        victim = run.nodes[self._victim].name
        if self._fault == "cut" and self._is_told(run.errors.get(victim)):
            self._left_out = self._victim
        for index, node in enumerate(run.nodes):
            if index == self._left_out:
                continue
            found = run.results.get(node.name)
            if found is None:
                broken.append(f"{node.name}: {run.errors.get(node.name, 'hangs')}")
            elif problem := what_is_wrong(found, self._left_out, self.workers):
                broken.append(f"{node.name}: {problem}")
        living = [run.results[n.name] for n in run.nodes if n.name in run.results]
        if any(found["read"] != living[0]["read"] for found in living):
            broken.append("they have read different values after the same barrier")
        if self._fault == "none" and any(len(f["members"]) < self.workers for f in living):
            broken.append(f"members at the end: {[found['members'] for found in living]}")
        return broken


def what_is_wrong(found, left_out, workers):
    """Compare what one worker has seen with what there is to see.

    Args:
        found: by the worker.
        left_out: who was, and has said so: for the others it is as if it had died.
        workers: how many there are.
    """
    for round_, values in enumerate(found["read"], start=1):
        if left_out is None and len(set(values)) > 1:
            return f"read {round_} is in part {set(values)}"
        for value in set(values):
            first, *counts = digits(value, workers)
            expected = [first if left_out == 0 else 1, *[round_] * workers]
            if left_out is not None:
                expected[1 + left_out] = min(round_, counts[left_out])
            if [first, *counts] != expected or not 1 <= first <= workers:
                return f"read {round_} has {[first, *counts]}, expected {expected}"
    for row, values in enumerate(found["rows"]):
        for counts in (digits(value, workers)[1:] for value in set(values)):
            expected = [ROUNDS * (worker % 2 == row) for worker in range(workers)]
            if left_out is not None:
                expected[left_out] = min(expected[left_out], counts[left_out])
            if counts != expected:
                return f"row {row} has {counts}, expected {expected}"
    return ""


def digits(value, workers):
    """Return whose first value it is, and how often each worker has added to it."""
    counts = [int(value) // BASE**worker % BASE for worker in range(workers)]
    return [int(value) // BASE**workers, *counts]
