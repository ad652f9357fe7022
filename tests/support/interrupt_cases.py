"""What is interrupted: rounds of two nodes of this process, of which the first one is."""

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import DpwaError
from dpwa.policy.push_sum import UNIT
from dpwa.tables.node_tables import Tables
from support.inside import context_of
from support.interrupts import Moments, alarms, described, interrupted_at_random
from support.nodes import config_of, eventually
from support.times import Bound

SETTINGS = {"timeout_ms": 300, "log_level": "error", "collective_timeout_s": 2.0}
ROUNDS, MAX_LATE = 40, 3  # that are played afterwards, and how often these are not whole
CLOSED_WITHIN_S = 3.0


def check_rounds(is_whole, within_s):
    """Check that rounds are whole again; a busy machine may delay a fetch, and so hold off more."""
    late = 0
    for _ in range(ROUNDS):
        if not is_whole():
            late += 1
            eventually(is_whole, within_s)
    assert late <= MAX_LATE, f"{late} times a round was not whole"


class Gossip:
    """Two adapters. The second publishes, and merges what it has agreed on; it asks nobody."""

    def __init__(self, **settings):
        torch.manual_seed(3)
        config = config_of(2, **{**SETTINGS, **settings})
        self.two = DpwaPyTorchAdapter(nn.Linear(8, 8), "w2", {**config, "fetch_probability": 0.0})
        self.one = DpwaPyTorchAdapter(nn.Linear(8, 8), "w1", config)
        eventually(self.round)

    def work(self):
        self.one.update_send(0.5)
        self.merge = self.one.update_wait(0.5)

    def around(self, work):
        """Do what the second node has to do for it, and let the first one be interrupted."""
        self.two.update_send(0.5)
        self.merge = None
        try:
            return work()
        finally:
            self.two.update_wait(0.5)

    def round(self):
        """Make a whole round; return whether the first node has published and merged."""
        self._settle()
        before = self.version
        self.around(self.work)
        return self.version == before + 1 and self.merge is not None

    def goes_on(self):
        """Publish after an interrupt: what was agreed on may hold a slot until its time is over."""
        before = self.version

        def publishes():
            self.around(self.work)
            return self.version > before

        eventually(publishes, 1.0)

    def _settle(self):
        for adapter in (self.one, self.two):
            transactions = context_of(adapter.connection.node).transactions
            while transactions is not None and transactions.is_engaged:
                adapter.update_wait(0.5)
                time.sleep(0.001)

    @property
    def version(self):
        return self.one.connection.node.version

    def check(self):
        check_rounds(self.round, 3.0)
        memory = self.one.connection.node.report()["memory"]
        assert memory["slots"] <= 3, memory
        assert not memory["lost_slots"], memory

    def close(self):
        for adapter in (self.one, self.two):
            bound = Bound(CLOSED_WITHIN_S)
            adapter.close()
            assert not bound.is_over


class PushSum(Gossip):
    """No mass may come or go."""

    def __init__(self):
        super().__init__(algorithm="push_sum", push_sum={"probability": 1.0})

    def check(self):
        super().check()
        eventually(lambda: self._mass() == 2 * UNIT, 5.0)

    def _mass(self):
        for adapter in (self.one, self.two):
            adapter.connection.node.rounds.skip()
        reports = [
            adapter.connection.node.report()["transactions"] for adapter in (self.one, self.two)
        ]
        return sum(report["units"] for report in reports)


class TwoThreads:
    """The second node has a thread of its own, which goes on whatever becomes of the first."""

    def __init__(self):
        config = config_of(2, **SETTINGS)
        self.stack = ExitStack()
        self.two = self.stack.enter_context(DpwaConnection("w2", config))
        self.one = DpwaConnection("w1", config)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.is_over.is_set():
            with suppress(DpwaError):
                self.other()

    def around(self, work):
        return work()

    def goes_on(self):
        eventually(self.round, 8.0)

    def check(self):
        check_rounds(self.round, 8.0)

    def close(self):
        self.is_over.set()
        self.thread.join()
        bound = Bound(CLOSED_WITHIN_S)
        self.one.close()
        assert not bound.is_over
        self.stack.close()


class Collectives(TwoThreads):
    """Barriers, values that come along, and values in shared memory."""

    def __init__(self):
        super().__init__()
        self.check()

    def other(self):
        self.two.barrier(timeout_s=0.5)
        self.two.all_reduce(np.ones(4), timeout_s=0.5)
        self.two.all_reduce(np.ones(20_000), timeout_s=0.5)

    def work(self):
        self.one.barrier(timeout_s=1.0)
        values = [np.ones(4), np.ones(20_000)]
        self.sums = [self.one.all_reduce(value, timeout_s=1.0)[0][-1] for value in values]

    def round(self):
        try:
            self.work()
        except DpwaError:
            return False
        return self.sums == [2.0, 2.0]


class TableCase(TwoThreads):
    """Additions to two shards, and reads."""

    is_in_step = False

    def __init__(self):
        super().__init__()
        self.tables = Tables(self.one, sync=self.is_in_step)
        self.table = self.tables.array(1000, dtype="float64")

    def _run(self):
        self.their_tables = Tables(self.two, sync=self.is_in_step)
        self.their_table = self.their_tables.array(1000, dtype="float64")
        super()._run()
        self.their_tables.close()

    def other(self):
        self.is_over.wait()

    def work(self):
        self.table.add(np.ones(1000))
        self.values = self.table.get()

    def round(self):
        try:
            before = self.table.get()
            self.work()
        except DpwaError:
            return False
        assert len(set(self.values)) == 1, "a part of an addition"
        return self.values[0] == before[0] + 1.0

    def close(self):
        bound = Bound(CLOSED_WITHIN_S)
        self.tables.close()
        assert not bound.is_over
        super().close()


class BarrierCase(TableCase):
    """A barrier after each addition, in which the second node waits all the time."""

    def other(self):
        self.their_tables.barrier(timeout_s=0.5)

    def work(self):
        self.table.add(np.ones(1000))
        self.tables.barrier(timeout_s=1.0)
        self.values = self.table.get()


class InStepCase(TableCase):
    """Reads in step, each between two barriers; the second node reads all the time."""

    is_in_step = True

    def other(self):
        self.their_table.get()


CASES = {
    "mapped": Gossip,
    "tcp": lambda: Gossip(transport="tcp"),
    "symmetric": lambda: Gossip(algorithm="symmetric"),
    "push_sum": PushSum,
    "collectives": Collectives,
    "tables": TableCase,
    "barriers": BarrierCase,
    "in_step": InStepCase,
}


def interrupt_at_random(case, count, rng, most_s):
    """Interrupt the work of a case so many times, each within this time; return how often."""
    interrupts = 0

    def work():
        nonlocal interrupts
        with suppress(DpwaError):  # that a call raises for the one before
            interrupts += interrupted_at_random(case.work, rng, most_s)

    with alarms():
        while interrupts < count:
            for _ in range(10):
                case.around(work)
            case.goes_on()  # who was left out of a collective has to be let in first
    return interrupts


def interrupt_at_each(case, rng, most, files=()):
    """Interrupt a case at each of its moments, or `most` times at drawn ones; return how often.

    Some that were seen once are not come by again; others are drawn then, as many once more.

    `files`: names of those whose code counts; by default that of all.
    """
    moments = Moments()
    for _ in range(3):
        case.around(lambda: moments.watch(case.work))
    found = [m for m in moments.seen if not files or Path(m[0].co_filename).name in files]
    hits = 0
    for moment in rng.sample(found, k=min(2 * (most or len(found)), len(found))):
        if most and hits == most:
            break
        try:
            hits += case.around(lambda moment=moment: moments.interrupt(moment, case.work))
        except DpwaError as error:
            raise AssertionError(f"after an interrupt at {described(moment)}: {error}") from error
        try:
            case.goes_on()
        except Exception as error:
            raise AssertionError(f"after an interrupt at {described(moment)}: {error}") from error
    return hits
