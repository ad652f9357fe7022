"""Train two groups of two ranks. FSDP2 shards the model of a group over the group's ranks.

dpwa launch -n 2 -- torchrun --standalone --nproc-per-node 2 examples/fully_sharded.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import dpwa

dist.init_process_group("gloo")
torch.manual_seed(0)  # all groups start from the same parameters
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

with dpwa.connect(model, optimizer) as gossip:
    torch.manual_seed(1 + dist.get_rank() + 2 * (gossip.name == "w2"))  # each rank has other data
    for step in range(300):
        inputs = torch.randn(32, 64)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        merge = gossip.step(loss.detach())
        if step % 100 == 99 and dist.get_rank() == 0:
            print(f"{gossip.name}: step {step + 1}, loss {loss.item():.3f}, merged {merge}")
    report = gossip.finish()
if dist.get_rank() == 0:
    print(f"{gossip.name}: {report}")
dist.destroy_process_group()
