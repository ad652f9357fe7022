"""The names of torch.distributed, each process with the variables that `dpwa launch` sets."""

import json
from datetime import timedelta

import pytest
import torch
import torch.distributed as torch_dist
from support.launched import run_nodes
from support.nodes import config_of

import dpwa.distributed as dist
from dpwa.errors import DpwaError, UserError

PROGRAM = """
import json
import torch
from torch.distributed import ReduceOp
import dpwa.distributed as dist

dist.init_process_group("gloo", "env://", rank=0, world_size=3)
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((3,), float(rank + 1))
dist.all_reduce(tensor)
mean = torch.full((3,), float(rank + 1))
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
given = torch.full((2,), float(rank))
dist.broadcast(given, 1, None, True).wait()
dist.all_reduce(torch.ones(1), ReduceOp.MAX, group=dist.group.WORLD, async_op=True).wait()
dist.barrier(async_op=True).wait()
everybody = [None] * size
dist.all_gather_object(everybody, {"rank": rank})
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
    with pytest.raises(UserError, match="which node this is"):
        dist.init_process_group()


@pytest.mark.usefixtures("alone")
def test_a_process_takes_part_once():
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    with pytest.raises(UserError, match="called before"):
        dist.init_process_group("w1", config_of(1))


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_changed_in_place_is_refused():
    with pytest.raises(UserError, match=r"in place \(got float"):
        dist.all_reduce(1.0)
    with pytest.raises(UserError, match="rank from 0 to 0"):
        dist.broadcast([], src=1)


@pytest.mark.usefixtures("alone")
def test_calls_of_torch_are_taken_as_they_stand_there():
    tensor = torch.full((3,), 2.0)
    for op in (torch_dist.ReduceOp.SUM, torch_dist.ReduceOp.AVG, dist.ReduceOp.MAX, "min"):
        assert dist.all_reduce(tensor, op) is None
    assert dist.all_reduce(tensor, op=torch_dist.ReduceOp.MIN, async_op=True).wait()
    assert dist.broadcast(tensor, 0, dist.group.WORLD, async_op=True).is_completed()
    assert dist.barrier(group=None, async_op=True, device_ids=[0]).wait()
    found = [None]
    dist.all_gather_object(found, {"a": 1}, None)
    assert found == [{"a": 1}] == dist.all_gather_object({"a": 1})
    assert (dist.get_rank(None), dist.get_world_size(group=None)) == (0, 1)
    assert dist.is_available()
    assert tensor.tolist() == [2.0] * 3


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (
            lambda: dist.all_reduce(torch.ones(1), torch_dist.ReduceOp.PRODUCT),
            "op must be one of sum, mean, max, min, not 'PRODUCT'",
        ),
        (lambda: dist.all_reduce(torch.ones(1), []), "op must be one of"),
        (
            lambda: dist.all_reduce(torch.ones(1), group=object()),
            "group: expected None or group.WORLD .got <object",
        ),
        (lambda: dist.barrier(2.0), "group: expected None or group.WORLD .got 2.0"),
        (lambda: dist.get_rank(1), "group: expected None"),
    ],
)
def test_a_group_or_an_operation_that_is_not_there_is_told(call, what):
    with pytest.raises(UserError, match=what):
        call()


@pytest.mark.usefixtures("alone")
def test_a_timeout_at_the_beginning_is_that_of_every_call():
    dist.destroy_process_group()
    dist.init_process_group("w1", config_of(2), timeout=timedelta(seconds=0.05))
    with pytest.raises(DpwaError):
        dist.barrier()


def test_a_program_may_look_whether_something_is_there():
    assert not hasattr(dist, "reduce_scatter")
    assert hasattr(dist, "all_reduce")
