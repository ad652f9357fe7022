"""Share one data set among the nodes. In each epoch, each item goes to one of the nodes.

Run: dpwa launch -n 2 -- python examples/shared_data.py
"""

import math

import torch
from torch.nn import Linear, Sequential, Tanh, functional
from torch.utils.data import DataLoader, TensorDataset

import dpwa
from dpwa.dataset import SharedSampler

EPOCHS = 5
x = torch.linspace(-math.pi, math.pi, 2048).unsqueeze(1)
dataset = TensorDataset(x, x.sin())
torch.manual_seed(0)  # all nodes start from the same parameters
net = Sequential(Linear(1, 64), Tanh(), Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

with dpwa.connect(net, optimizer) as gossip:  # the launcher sets the name of this node
    sampler = SharedSampler(len(dataset), gossip, range_size=128)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in sampler.batches(loader):  # ends when nodes have trained on all items
            optimizer.zero_grad()
            error = functional.mse_loss(net(inputs), targets)
            error.backward()
            optimizer.step()
            gossip.step(error)
    print(gossip.finish())
    print(f"{gossip.name} trained on {sampler.acknowledged} of {EPOCHS * len(dataset)} items")
with torch.no_grad():
    print(f"error on the whole curve {functional.mse_loss(net(x), x.sin()):.5f}")
