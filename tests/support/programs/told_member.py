"""told_member.py NAME CONFIG VALUE SIZE: gossip one vector as told; nothing is trained."""

import math
import sys
import time

import torch
from obeying import obey

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.policy import beginners

beginners.LEAD = math.inf  # told one after the other, they begin many rounds apart: that is no lead

name, config, value, size = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
net = torch.nn.Linear(size, 1, bias=False, dtype=torch.float64)
with torch.no_grad():
    net.weight.fill_(value)
adapter = DpwaPyTorchAdapter(net, name, config)


def run(seconds, loss=None):
    """Gossip for so long; return the longest wait and how many rounds merged."""
    longest_s, merges, end = 0.0, 0, time.monotonic() + float(seconds)
    loss = None if loss is None else float(loss)
    while time.monotonic() < end:
        adapter.update_send(loss)
        start = time.monotonic()
        merges += adapter.update_wait(loss) is not None
        longest_s = max(longest_s, time.monotonic() - start)
    return [longest_s, merges]


obey(run=run, exit=sys.exit)
