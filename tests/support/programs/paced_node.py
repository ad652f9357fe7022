"""paced_node.py CONFIG NAME STEP_S SECONDS: learn a linear map, in steps of a given length.

Says `ready` after the first update.
"""

import sys
import time

import torch
from torch.nn import Linear, functional

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

config, name, step_s, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(0)  # all nodes start from the same parameters, and learn the same map
net, teacher = Linear(300, 100), Linear(300, 100)
torch.manual_seed(1 + int(name[1:]))  # each sees inputs of its own
optimizer = torch.optim.SGD(net.parameters(), lr=1.5)
loss, end = None, time.monotonic() + seconds
with DpwaPyTorchAdapter(net, name, config, optimizer=optimizer) as gossip:
    while time.monotonic() < end:
        gossip.update_send(loss)
        began = time.monotonic()
        inputs = torch.randn(64, 300)
        error = functional.mse_loss(net(inputs), teacher(inputs).detach())
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        is_first, loss = loss is None, error.item()
        time.sleep(max(0.0, began + step_s - time.monotonic()))  # the step takes so long
        gossip.update_wait(loss)
        if is_first:  # of updates, it may have taken over hundreds from others
            print("ready", flush=True)
