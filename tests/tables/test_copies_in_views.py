"""Copies of shards through many views: who is killed, left out, let in, or copies, is drawn."""

import random

import numpy as np
from support.table_states import fill

from dpwa.policy.group_views import Member
from dpwa.tables.directory import Told, new_plan, plans
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import TableSpec

NAMES = ("a", "b", "c", "d")
SHARDS = 3
CLIENT = "client"


class Contacts:
    """Of a node that shares no memory."""

    def __init__(self, name):
        self.own = Member(name)

    def offer_memory(self):
        return False


class Cluster:
    """The stores of some nodes, and what was acknowledged; nothing else of them.

    Attributes:
        stood_in: how often a copy of who was left out has come to be a primary.
        lost: how often a shard was.
    """

    def __init__(self, rng):
        self.rng = rng
        self.spec = TableSpec(rows=SHARDS, replicas=rng.choice([1, 1, 2]))
        self.stores = {name: ShardStore(Contacts(name)) for name in NAMES}
        self.view, self.epoch = NAMES, 0
        self.left_out = set()
        self.begun = set(NAMES)
        self.counters, self.acknowledged = [0] * SHARDS, [0] * SHARDS
        self.stood_in = self.lost = 0
        self.plan = new_plan(self.spec, SHARDS, NAMES)
        for store in self.stores.values():
            store.settle(0, self.plan)
            store.be_ready(0)

    def copy(self, name, shard):
        return self.stores[name].copies.get((0, shard)) if name in self.stores else None

    def add(self, shard):
        """Apply an addition on the primary, and perhaps on its replicas: then it counts."""
        holders = self.plan.placement.holders[shard]
        copies = [self.copy(name, shard) for name in holders if name in self.begun]
        if not copies or len(copies) < len(holders):
            return
        if not all(copy is not None and copy.state.is_whole for copy in copies):
            return  # it waits
        self.counters[shard] += 1
        last = self.rng.choice([len(copies), len(copies), self.rng.randint(1, len(copies))])
        for copy in copies[:last]:
            for counter in range(1, self.counters[shard] + 1):  # what was not confirmed comes again
                copy.state.apply(CLIENT, counter, None, np.ones(1, np.float32))
        if last == len(copies):
            self.acknowledged[shard] = self.counters[shard]
        else:
            self.change_view()  # a replica that does not answer is asked about

    def copy_states(self):
        """Let some of the copies that are to come be there."""
        for shard, source, target in self.plan.copies:
            one, other = self.copy(source, shard), self.copy(target, shard)
            if {source, target} <= self.begun and self.rng.random() < 0.5 and other.incoming:
                fill(other.state, one.state.export())
                other.incoming = None
                self.stores[target].completed((0, shard))

    def change_view(self):
        """Kill some, leave out some, let in some of those who are not there."""
        fates = {name: self.rng.choice(["stays"] * 4 + ["dies", "out"]) for name in self.view}
        stay = [name for name in self.view if fates[name] == "stays"]
        has_begun = self.begun >= set(self.view)
        if not stay or (not has_begun and len(self.view) - len(stay) > self.spec.replicas):
            return  # who has not begun does not know whether those who are gone have
        self.left_out |= {name for name in self.view if fates[name] == "out"}
        for name in self.view:
            if fates[name] == "dies":
                del self.stores[name]
        joiners = {name for name in NAMES if name not in self.view and self.rng.random() < 0.5}
        for name in joiners:
            if name in self.left_out:
                self.stores[name].left_out()
            else:
                self.stores[name] = ShardStore(Contacts(name))
        self.left_out -= joiners
        self.view = tuple(sorted({*stay, *joiners}))
        self.epoch += self.rng.randint(1, 3)
        for name in self.view:
            self.stores[name].drop_incomplete()
        told = {name: Told(self.stores[name].known()) for name in self.view}
        self.plan = plans(self.view, told, self.epoch).get(0)
        if self.plan is None:
            return
        self.begun = {name for name in self.view if self.rng.random() < 0.9}
        for name in self.begun:
            self.stores[name].settle(0, self.plan)
        if not any(table.needed for one in told.values() for table in one.tables.values()):
            self.acknowledged = [0] * SHARDS  # all were left out, and are told so
        self.check(set(stay))

    def check(self, stayed):
        for shard, holders in enumerate(self.plan.placement.holders):
            if not holders:
                self.lost += 1
            elif holders[0] in self.begun:
                last, count = self.copy(holders[0], shard).state.applied.get(CLIENT, (0, 0))
                assert last == count >= self.acknowledged[shard], (shard, self.plan)
                self.stood_in += holders[0] not in stayed


def test_nothing_acknowledged_is_undone_by_a_copy_that_stands_in():
    stood_in = lost = 0
    for seed in range(120):
        rng = random.Random(seed)
        cluster = Cluster(rng)
        for _ in range(40):
            act = rng.choice([cluster.copy_states, cluster.change_view, *[None] * 4])
            if cluster.plan is None:
                break
            if act is None:
                cluster.add(rng.randrange(SHARDS))
            else:
                act()
        stood_in, lost = stood_in + cluster.stood_in, lost + cluster.lost
    assert stood_in > 20, "the law was not put to a test"
    assert lost > 20
