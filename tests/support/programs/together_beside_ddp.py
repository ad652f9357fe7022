"""together_beside_ddp.py RANK COUNT STORE CONFIGS: the same training by DDP and by `together`.

CONFIGS has a configuration for each optimizer. Prints a line of JSON: by optimizer, how far apart
the parameters are after STEPS steps, relative to their length, and a digest of those of `together`.
"""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch import nn

import dpwa
import dpwa.adapters.pytorch

STEPS = 50
OPTIMIZERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), 0.05, momentum=0.9),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), 0.01),
    "Muon": lambda net: torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], 0.01),
}

rank, count = map(int, sys.argv[1:3])
store, configs = sys.argv[3], json.loads(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)


def build(kind):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    return net, OPTIMIZERS[kind](net)


def train_one(net, optimizer, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = (torch.randn(16, width, generator=generator) for width in (64, 8))
    optimizer.zero_grad()
    (net(inputs) - targets).square().mean().backward()
    optimizer.step()


def by_ddp(kind):
    net, optimizer = build(kind)
    ddp = nn.parallel.DistributedDataParallel(net)
    for step in range(STEPS):
        train_one(ddp, optimizer, step)
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def by_together(kind):
    net, optimizer = build(kind)
    with dpwa.connect(net, optimizer, config=configs[kind], name=f"w{rank + 1}") as gossip:
        for step in range(STEPS):
            gossip.update_send()
            train_one(net, optimizer, step)
            gossip.update_wait()
        pace = gossip.connection.node.report()["pace"]["in_pace"]
        dist.barrier()
    return nn.utils.parameters_to_vector(net.parameters()).detach(), len(pace)


found = {}
for kind in configs:
    expected, (own, pace) = by_ddp(kind), by_together(kind)
    apart = float((own.double() - expected.double()).norm() / expected.double().norm())
    found[kind] = [apart, pace, hashlib.blake2b(own.numpy().tobytes(), digest_size=8).hexdigest()]
print(json.dumps(found))
dist.destroy_process_group()
