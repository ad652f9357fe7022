"""Additions to a shard while replicas get its state, without messages."""

import numpy as np

from dpwa.policy.group_views import Member
from dpwa.tables.directory import new_plan
from dpwa.tables.replication import Replication
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import TableSpec
from dpwa.wire.tables import TableAddition, TableState, TableStateTaken


class Contacts:
    """Of a node that shares no memory."""

    own = Member("a")

    def offer_memory(self):
        return False


class Channels:
    """To nobody."""

    now = 0.0

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


def test_a_replica_confirms_to_the_client_what_it_has_applied_and_what_a_state_has():
    store, said = ShardStore(Contacts()), []
    store.settle(0, new_plan(TableSpec(rows=2, replicas=1), 1, ("b", "a")))
    store.be_ready(0)
    replication = Replication(
        store, Channels(), lambda name, item: said.append((name, item)), lambda: None
    )
    fields = {"name": "b", "client": "c:3:01", "rows": None, "is_first": False}
    one = TableAddition.model_construct(counter=1, contained=1, **fields, **TAKEN)
    replication.replicate(one, np.ones(2, np.float32).tobytes())
    ((client, item),) = said
    assert client == "c:3"  # its name may have a colon
    assert item.fields["counter"] == 1
    assert item.fields["client"] == "c:3:01"
    donor = ShardStore(Contacts())
    donor.settle(0, new_plan(TableSpec(rows=2, replicas=0), 1, ("a",)))
    for counter, client in ((1, "c:3:01"), (2, "c:3:01"), (1, "d:02")):
        donor.copies[KEY].apply(client, counter, None, np.ones(2, np.float32), is_first=False)
    missed = TableAddition.model_construct(counter=3, contained=3, **fields, **TAKEN)
    said.clear()
    replication.replicate(missed, np.ones(2, np.float32).tobytes())
    assert said == []
    assert replication.ask_again()
    for part, piece in donor.copies[KEY].state.export():
        state = TableState.model_construct(name="b", part=part, **TAKEN)
        replication.take_state(state, bytes(piece))
    told = [(name, item.fields.get("counter")) for name, item in said]
    assert told == [("b", None), ("c:3", 2), ("d", 1), ("b", None)]
