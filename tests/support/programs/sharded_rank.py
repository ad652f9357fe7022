"""sharded_rank.py FOLDER NAME RANK CONFIG PLAN RUN: one rank of a model, until `FOLDER/stop`
exists.

All parameters are one number, which grows in each step. The rank prints a line of JSON for each:
[updates, least, largest of its parameters, merges so far]. A rank that is half merged would have
other numbers than its mate.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import dpwa
from dpwa.testing import FaultPlan

GROWTH = {"w1": 0.5, "w2": 0.25}


def main(folder, name, rank, config, plan, run):
    torch.set_num_threads(1)
    folder, rank = Path(folder), int(rank)
    store = dist.FileStore(str(folder / f"store-{name}-{run}"), 2)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20))
    fully_shard(net[0])
    fully_shard(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.to_local().fill_(1.0)
    merges = 0
    with dpwa.connect(net, config=config, name=name) as gossip:
        FaultPlan.parse(plan).install()
        while not said(folder, rank):
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.to_local().add_(GROWTH[name])
            merges += gossip.step(1.0) is not None
            values = torch.cat([p.detach().to_local().flatten() for p in net.parameters()])
            row = [gossip.updates, float(values.min()), float(values.max()), merges]
            print(json.dumps(row), flush=True)
            time.sleep(0.02)
    dist.destroy_process_group()


def said(folder, rank):
    """Whether it is over, as rank 0 sees it."""
    over = torch.tensor([float(rank == 0 and (folder / "stop").exists())])
    dist.all_reduce(over)
    return bool(over)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:  # what Gloo says when the other rank is gone
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # its destructors would wait for that rank
