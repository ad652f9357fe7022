"""Train as a node in a pod. The node closes properly when Kubernetes sends SIGTERM."""

import signal
import sys
import time
from types import FrameType

import torch
from torch.nn import Linear, Sequential, Tanh, functional

import dpwa


def stop(number: int, _: FrameType | None) -> None:
    """Exit with the usual code for a signal. The `with` statement below closes the node."""
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, stop)  # by default, process 1 of a container ignores SIGTERM
torch.manual_seed(0)  # all nodes start from the same parameters
net = Sequential(Linear(1, 32), Tanh(), Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 3600)

with dpwa.connect(net, optimizer) as gossip:
    x = torch.linspace(-3, 3, 240).unsqueeze(1).chunk(gossip.world_size)[gossip.rank]
    while time.monotonic() < end:
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), x.sin())
        loss.backward()
        optimizer.step()
        gossip.step(loss.item())
        time.sleep(0.02)  # a step of your model takes longer
    print(gossip.finish(), flush=True)
