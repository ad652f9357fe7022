"""Train a model of text in a loop with Accelerate. Each node has a different part of the text.

Install, in a clone of dpwa: pip install -c constraints.txt '.[accelerate]'
Run: dpwa launch -n 2 -- python examples/accelerate_loop.py
"""

import os

import torch
from accelerate import Accelerator
from torch import nn

from dpwa.integrations.accelerate import DpwaGossip

rank, size = int(os.environ.get("DPWA_RANK", "0")), int(os.environ.get("DPWA_WORLD_SIZE", "1"))
modules = ["argparse", "asyncio", "collections", "json", "pathlib", "socket", "string", "typing"]
text = "".join(__import__(name).__doc__ or "" for name in modules)
windows = torch.tensor(list(text.encode("ascii", "ignore"))).unfold(0, 9, 1)
own = windows[rank::size][: 120 * 32]  # only this node trains on these windows

torch.manual_seed(0)  # all nodes start from the same parameters
net = nn.Sequential(nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 128), nn.Tanh())
net.append(nn.Linear(128, 128))
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=True)
model, optimizer, batches = accelerator.prepare(
    net, torch.optim.Adam(net.parameters(), lr=3e-3), torch.utils.data.DataLoader(own, 32)
)
with DpwaGossip(accelerator, model, optimizer) as gossip:
    steps = gossip.gossip.updates  # above 0 if this node has adopted the state of a peer
    for batch in accelerator.skip_first_batches(batches, 2 * steps):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch[:, :8]), batch[:, 8])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            gossip.step(loss)
            steps += accelerator.sync_gradients
print(gossip.report)
print(f"{gossip.merges} merges, {gossip.rounds} rounds in {steps} optimizer steps")
