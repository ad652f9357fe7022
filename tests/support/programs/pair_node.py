"""pair_node.py CELL...: one process of a cell of the campaign of pairs; see `node_of_a_cell`.

Prints the number of each step, and leaves what it has to tell, or the error that it was refused by.
"""

import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "campaigns"))

from cases.loops import Board, Training, connected, train
from pairs import node_of_a_cell

from dpwa.errors import DpwaError


def played(plan, index):
    training = Training(plan)
    KEPT.append(training)
    with connected(plan, training, index, plan.settings) as driver:
        return train(plan, training, driver, Board(plan.nodes))


def sharded(net):
    fully_shard(net)
    return net


KEPT = []  # a module that goes before its process group may hang (pytorch/pytorch#56297)
plan, index, tell = node_of_a_cell()
plan.extras.append(lambda driver, _: print(driver.step, flush=True))
if plan.ranks > 1:
    store = dist.FileStore(f"{sys.argv[5]}/store-{sys.argv[6]}", plan.ranks)
    dist.init_process_group("gloo", store=store, rank=plan.rank, world_size=plan.ranks)
    plan.wrap = DistributedDataParallel if plan.inside == "ddp" else sharded
try:
    tell(played(plan, index))
except DpwaError as error:
    tell(DpwaError(str(error)))
if plan.ranks > 1:
    dist.destroy_process_group()
