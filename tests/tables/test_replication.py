"""Additions to a shard while replicas get its state, without messages."""

import numpy as np

from dpwa.policy.group_views import Member
from dpwa.tables.directory import new_plan
from dpwa.tables.replication import Replication
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import TableSpec
from dpwa.wire.tables import TableAddition, TableStateTaken


class Contacts:
    """Of a node that shares no memory."""

    own = Member("a")

    def offer_memory(self):
        return False


class Channels:
    """To nobody."""

    def stream(self, target):
        return None


KEY = (0, 0)
TAKEN = {"number": 1, "table": 0, "shard": 0}


def test_additions_wait_until_the_last_of_several_replicas_has_the_state():
    store, said = ShardStore(Contacts()), []
    store.settle(0, new_plan(TableSpec(rows=2, replicas=2), 1, ("a", "b", "c")))
    store.be_ready(0)
    replication = Replication(
        store, Channels(), lambda name, item: said.append((name, item.kind)), lambda: None
    )
    for name in ("b", "c"):
        replication.state_taken(TableStateTaken.model_construct(name=name, is_whole=False, **TAKEN))
    addition = TableAddition.model_construct(
        name="b", client="b", counter=1, rows=None, is_first=False, contained=0, **TAKEN
    )
    replication.receive_addition(addition, np.ones(2, np.float32).tobytes())
    replication.state_taken(TableStateTaken.model_construct(name="b", is_whole=True, **TAKEN))
    assert store.copies[KEY].state.additions == 0
    assert said == []
    replication.state_taken(TableStateTaken.model_construct(name="c", is_whole=True, **TAKEN))
    assert store.copies[KEY].state.additions == 1
    assert said == [("b", TableAddition), ("c", TableAddition)]
