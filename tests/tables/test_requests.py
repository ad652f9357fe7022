"""Which confirmations acknowledge an addition of this node."""

import numpy as np
import pytest

from dpwa.errors import ProtocolError
from dpwa.policy.group_views import GroupView, Member
from dpwa.runtime import SYSTEM
from dpwa.tables.pending import PendingOperations
from dpwa.tables.requests import Requests
from dpwa.wire.tables import TableAdded

OWN = Member("a", b"12345678")
CLIENT = f"a:{OWN.incarnation.hex()}"
KEY = (0, 0)


class Store:
    def __init__(self, holders):
        self._holders = holders

    def holders(self, key):
        return self._holders


class Node:
    """A node with three additions to a shard that these members hold."""

    def __init__(self, *holders):
        self.pending = PendingOperations(GroupView((OWN,), 0), SYSTEM)
        self.requests = Requests(
            OWN, self.pending, Store(holders), lambda name, item: None, lambda answer: None
        )
        for _ in range(3):
            self.pending.queue_additions(0, [(0, None, np.zeros(8, np.uint8))], is_first=False)
        for addition in self.pending.take_fresh():
            self.requests.route(addition)

    def hear(self, name, counter, client=CLIENT, refused=""):
        fields = {"table": 0, "shard": 0, "client": client, "counter": counter}
        self.requests.added(TableAdded.model_construct(name=name, refused=refused, **fields))
        return self.requests.acknowledged


def test_all_replicas_must_have_an_addition_and_one_may_confirm_several():
    node = Node("b", "c", "d")
    assert node.hear("c", 1) == 0
    assert node.hear("b", 3) == 0  # the primary does not count
    assert node.hear("x", 3) == 0  # nor does a node without a copy
    assert node.hear("d", 3) == 1
    assert node.hear("c", 3) == 3
    assert node.pending.waiting_bytes == 0


def test_without_replicas_the_primary_confirms():
    node = Node("b")
    assert node.hear("b", 2) == 2
    assert node.pending.waiting_bytes == 8


def test_what_was_confirmed_in_another_view_or_to_another_process_does_not_count():
    node = Node("b", "c", "d")
    node.hear("c", 3)
    node.requests.begin_view()
    assert node.hear("d", 3) == 0
    assert node.hear("c", 3, client="a:00") == 0
    assert node.hear("c", 3) == 3


def test_a_refused_addition_is_told_and_is_not_counted():
    node = Node("b", "c")
    node.hear("b", 1, refused="too large")
    with pytest.raises(ProtocolError, match="an addition was refused: too large"):
        node.pending.raise_failure(0)
    assert node.hear("c", 3) == 2
