"""train_module_for_ever.py CONFIG NAME: train a tiny module; say `ready` after the first update."""

import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
with DpwaPyTorchAdapter(net, sys.argv[2], sys.argv[1], optimizer=optimizer) as gossip:
    loss, is_ready = None, False
    while True:
        gossip.update_send(loss)
        optimizer.zero_grad()
        error = net(torch.randn(8, 64)).square().mean()
        error.backward()
        optimizer.step()
        loss = error.item()
        gossip.update_wait(loss)
        if not is_ready:  # of updates, it may have taken over hundreds from others
            print("ready", flush=True)
            is_ready = True
        time.sleep(0.02)
