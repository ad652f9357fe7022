import pytest
import torch
from support.collective_nodes import collective_nodes
from torch.utils.data import DataLoader, TensorDataset

from dpwa import DpwaConnection
from dpwa.dataset import shard
from dpwa.errors import UserError

DATA = TensorDataset(torch.arange(100, 132))


def items_of(subset):
    return [int(item) for (batch,) in DataLoader(subset, batch_size=3) for item in batch]


def test_each_node_has_a_part_of_its_own_and_all_are_of_one_length():
    with collective_nodes(3) as nodes:
        parts = [items_of(shard(DATA, nodes[name])) for name in nodes.names]
    assert [len(part) for part in parts] == [10, 10, 10]
    seen = {item for part in parts for item in part}
    assert len(seen) == 30
    assert seen < set(range(100, 132))


def test_the_seed_says_who_has_what():
    with collective_nodes(2) as nodes:
        first, again, other = (items_of(shard(DATA, nodes["w2"], seed=s)) for s in (1, 1, 2))
        assert items_of(shard(DATA, nodes["w2"], shuffle=False)) == list(range(101, 132, 2))
    assert first == again != other


def test_fewer_items_than_nodes_cannot_be_cut():
    with collective_nodes(3, there=1) as nodes, pytest.raises(UserError, match="2 items"):
        shard(DATA.tensors[0][:2], nodes["w1"])


def test_without_a_list_there_are_no_parts():
    config = {"join": [], "listen": "tcp://127.0.0.1:0", "log_level": "error"}
    with DpwaConnection("w1", config) as connection, pytest.raises(UserError, match="`join`"):
        shard(DATA, connection)
