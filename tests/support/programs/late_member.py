"""Start late among nodes that train, with parameters of its own, and tell what came of it.

Usage: late_member.py NAME CONFIG VALUE

Prints JSON: clock and weight at the start, and after the first merge.
"""

import json
import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

name, config, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
net = torch.nn.Linear(8, 1, bias=False)
torch.nn.init.constant_(net.weight, value)
with DpwaPyTorchAdapter(net, name, config) as gossip:
    said = {"clock": gossip.clock, "updates": gossip.updates, "weight": net.weight.max().item()}
    for _ in range(300):
        gossip.update_send()
        time.sleep(0.02)
        if gossip.update_wait() is not None:
            break
    said |= {"then": gossip.clock, "weight_then": net.weight.max().item()}
    print(json.dumps(said), flush=True)
