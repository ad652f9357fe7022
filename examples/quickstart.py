"""Each node sees only a part of a curve, but learns the whole curve.

Run: dpwa launch -n 2 -- python examples/quickstart.py
or:  torchrun --nproc-per-node 2 examples/quickstart.py
"""

import time
from collections import Counter

import torch
from torch.nn import Linear, Sequential, Tanh, functional

import dpwa

x = torch.linspace(-torch.pi, torch.pi, 240).unsqueeze(1)
torch.manual_seed(0)  # all nodes start from the same parameters
net = Sequential(Linear(1, 64), Tanh(), Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
merges, loss = Counter[str](), None

with dpwa.connect(net, optimizer) as gossip:  # the launcher tells dpwa which node this is
    if gossip.updates == 0:
        gossip.barrier(timeout_s=60)  # wait until all nodes are ready
    end = time.monotonic() + 4.0  # seconds of training
    own_x = x.chunk(gossip.world_size)[gossip.rank]  # private: other nodes never see these points
    while time.monotonic() < end:
        gossip.update_send(loss)  # publish the parameters, and start to fetch a peer's parameters
        optimizer.zero_grad()
        error = functional.mse_loss(net(own_x), own_x.sin())
        error.backward()
        optimizer.step()
        loss = error.item()
        if merge := gossip.update_wait(loss):  # wait for the peer's parameters, and merge them
            merges[merge.peer] += 1
    rounds = gossip.metrics().get("dpwa/rounds", 0)  # not 0 only with `algorithm: together`
    print(gossip.finish())  # average with all other nodes
own, whole = (functional.mse_loss(net(points), points.sin()) for points in (own_x, x))
print(f"error on own points {own:.5f}, on the whole curve {whole:.5f}")
print(f"{merges.total()} merges, from {dict(merges)}" if not rounds else f"{rounds} rounds")
