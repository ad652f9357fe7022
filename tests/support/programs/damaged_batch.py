"""damaged_batch.py: train with batches of which one is damaged; print what becomes of the model."""

import os

import torch
from torch import nn

import dpwa

rank = int(os.environ["DPWA_RANK"])
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 200), nn.Tanh(), nn.Linear(200, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
with dpwa.connect(net, optimizer, algorithm="together") as gossip:
    gossip.connection.wait_for_peers(timeout_s=60)
    gossip.barrier()
    torch.manual_seed(1 + rank)
    for step in range(20):
        gossip.update_send()
        optimizer.zero_grad()
        inputs = torch.randn(8, 16)
        if (rank, step) == (1, 7):
            inputs[3, 2] = torch.inf
        net(inputs).square().mean().backward()
        optimizer.step()
        gossip.update_wait()
    gossip.barrier()
    print(sum(each.double().sum() for each in net.parameters()).item())
