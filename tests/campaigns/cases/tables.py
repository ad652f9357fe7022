"""Workers of tables that start far apart; in some runs one of them is killed."""

import random

from support.simulated_nodes import ProgramRun
from support.simulations import run_spec
from table_starts import BASE, ROUNDS, SIZE, what_is_wrong

from cases.situation import drawn_network
from dpwa.tables.tables import Tables

LATEST_S = 10.0
TIMEOUT_S = 30.0
OVER_WITHIN_S = LATEST_S + TIMEOUT_S


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
        self._killed = None
        settings = {"collective_timeout_s": TIMEOUT_S}
        spec = run_spec(self.workers, settings, seed=seed, seconds=1e6, network=drawn_network(rng))
        self.run = ProgramRun(spec, self._work)
        self.network, self.tcp, self.events = self.run.network, self.run.tcp, self.run.events

    def play(self):
        """Let all of it happen; return what promises were broken."""
        run = self.run
        run.begin()
        if self._rng.random() < 1 / 3:
            self._killed = self._rng.randrange(self.workers)
            late_s = self._rng.uniform(0.0, self._rng.choice([0.5, 3.0]))
            run.network.call_later(max(self._starts) + late_s, self._kill)
        run.network.run_until(OVER_WITHIN_S)
        broken = self._judge()
        run.end()
        return broken

    def _kill(self):
        if self.run.nodes[self._killed].name in self.run.results:
            self._killed = None  # it has done all its work
        else:
            self.run.kill(self.run.nodes[self._killed])

    def _work(self, node, runtime, connection):
        """Do what `table_starts.work` does."""
        me, read = node.index, []
        runtime.sleep(self._starts[me])
        tables = Tables(connection, sync=self._is_sync)
        runtime.sleep(self._pauses[me])
        first = [(me + 1) * BASE**self.workers] * SIZE
        table = tables.array(SIZE, first, dtype="float64")
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
        return {"read": read, "rows": rows, "members": members}

    def _judge(self):
        run, broken = self.run, []
        for index, node in enumerate(run.nodes):
            if index == self._killed:
                continue
            found = run.results.get(node.name)
            if found is None:
                broken.append(f"{node.name}: {run.errors.get(node.name, 'hangs')}")
            elif problem := what_is_wrong(found, self._killed, self.workers):
                broken.append(f"{node.name}: {problem}")
        living = [run.results[n.name] for n in run.nodes if n.name in run.results]
        if any(found["read"] != living[0]["read"] for found in living):
            broken.append("they have read different values after the same barrier")
        if self._killed is None and any(len(f["members"]) < self.workers for f in living):
            broken.append(f"members at the end: {[found['members'] for found in living]}")
        return broken
