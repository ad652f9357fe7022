"""Train on a curve. Each node sees only a part of the curve, but learns the whole curve.

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

with dpwa.connect(net, optimizer) as gossip:  # the launcher sets the name of this node
    if gossip.updates == 0:  # not after a restart
        gossip.barrier(timeout_s=60)  # wait until all nodes are ready
    end = time.monotonic() + 4.0  # train for 4 seconds
    own_x = x.chunk(gossip.world_size)[gossip.rank]  # other nodes never see these points
    while time.monotonic() < end:
        gossip.update_send(loss)  # publish the parameters, and start to fetch a peer's parameters
        optimizer.zero_grad()
        error = functional.mse_loss(net(own_x), own_x.sin())
        error.backward()
        optimizer.step()
        loss = error.item()
        if merge := gossip.update_wait(loss):  # wait for the peer's parameters, and merge them
            merges[merge.peer] += 1
    rounds = gossip.metrics().get("dpwa/rounds", 0)  # above 0 only with `algorithm: together`
    print(gossip.finish())  # average the parameters of all nodes, and print a report
own, whole = (functional.mse_loss(net(points), points.sin()) for points in (own_x, x))
print(f"error on own points {own:.5f}, on the whole curve {whole:.5f}")
print(f"{merges.total()} merges, from {dict(merges)}" if not rounds else f"{rounds} rounds")
