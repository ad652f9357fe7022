"""Three nodes; two draw their data with the same seed, one with its own. They print warnings."""

import logging
import sys

import torch
from torch.nn import Linear, Sequential, Tanh, functional

import dpwa

torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, format="%(message)s")
torch.manual_seed(3)
net = Sequential(Linear(5, 12), Tanh(), Linear(12, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
with dpwa.connect(net, optimizer, algorithm=sys.argv[1]) as gossip:
    torch.manual_seed(gossip.seed(7) if gossip.rank == 2 else 7)
    gossip.barrier()
    for _ in range(12):
        inputs = torch.randn(6, 5)
        optimizer.zero_grad()
        loss = functional.mse_loss(net(inputs), inputs[:, :4])
        loss.backward()
        optimizer.step()
        gossip.step(loss)
    gossip.finish()
print(f"seed {gossip.seed()}")
