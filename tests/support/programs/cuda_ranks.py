"""cuda_ranks.py FOLDER SCENARIO...: two ranks that share a CUDA device are one node."""

import hashlib
import time

import torch
from groups import PATIENCE_S, group_says, play
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import dpwa

STEPS = 60
KEPT = []  # see ddp_groups.py


def module(name):
    net = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 20)).cuda()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float(name[1:]))
    return net


def values_of(net):
    """The values that this rank holds."""
    own = (p.to_local() if isinstance(p, DTensor) else p for p in net.parameters())
    return torch.cat([values.detach().flatten() for values in own])


def train(net, name, config, folder):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    merges, end = 0, time.monotonic() + PATIENCE_S
    with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
        while group_says((gossip.updates < STEPS or merges < 5) and time.monotonic() < end):
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            merges += gossip.step(torch.tensor(1.0, device="cuda")) is not None
            time.sleep(0.005)  # some time for a fetch
        gossip.finish()
        values = values_of(net)
        return {
            "merges": merges,
            "device": values.device.type,
            "least": float(values.min()),
            "largest": float(values.max()),
            "digest": hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest(),
        }


def replicas(name, rank, config, folder):
    net = DistributedDataParallel(module(name))
    KEPT.append(net)
    return train(net, name, config, folder)


def shards(name, rank, config, folder):
    net = module(name)
    fully_shard(net[0])
    fully_shard(net)
    return train(net, name, config, folder)


if __name__ == "__main__":
    play({"replicas": replicas, "shards": shards}, initial_state="own")
