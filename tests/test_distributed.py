"""The names of torch.distributed, each process with the variables that `dpwa launch` sets."""

import json

import pytest
from support.launched import run_nodes
from support.nodes import config_of

import dpwa.distributed as dist
from dpwa.errors import UserError

PROGRAM = """
import json
import torch
import dpwa.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((3,), float(rank + 1))
dist.all_reduce(tensor)
mean = torch.full((3,), float(rank + 1))
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
given = torch.full((2,), float(rank))
dist.broadcast(given, src=1)
dist.barrier()
everybody = dist.all_gather_object({"rank": rank})
print(json.dumps([rank, size, tensor.tolist(), mean.tolist(), given.tolist(), everybody]))
dist.destroy_process_group()
assert not dist.is_initialized()
"""


@pytest.fixture
def alone():
    config = config_of(1)
    dist.init_process_group("w1", config)
    yield
    dist.destroy_process_group()


def test_three_processes_reduce_broadcast_and_gather(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    rows = sorted(json.loads(out) for out in run_nodes(tmp_path / "program.py", 3))
    everybody = [{"rank": rank} for rank in range(3)]
    assert rows == [[rank, 3, [6.0] * 3, [2.0] * 3, [1.0] * 2, everybody] for rank in range(3)]


def test_nothing_works_before_the_beginning(monkeypatch):
    with pytest.raises(UserError, match="init_process_group first"):
        dist.barrier()
    monkeypatch.delenv("DPWA_NAME", raising=False)
    with pytest.raises(UserError, match="set DPWA_NAME"):
        dist.init_process_group()


@pytest.mark.usefixtures("alone")
def test_a_process_takes_part_once():
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    with pytest.raises(UserError, match="called already"):
        dist.init_process_group("w1", config_of(1))


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_changed_in_place_is_refused():
    with pytest.raises(UserError, match="in place, got float"):
        dist.all_reduce(1.0)
    with pytest.raises(UserError, match="rank from 0 to 0"):
        dist.broadcast([], src=1)
