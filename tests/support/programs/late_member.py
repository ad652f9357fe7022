"""late_member.py NAME CONFIG VALUE: start late among nodes that train.

Prints JSON: clock and weight at the start, and after the first merge.
"""

import json
import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

LONGEST_S, STEP_S = 15.0, 0.02
name, config, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
net = torch.nn.Linear(8, 1, bias=False)
torch.nn.init.constant_(net.weight, value)
with DpwaPyTorchAdapter(net, name, config) as gossip:
    said = {"clock": gossip.clock, "updates": gossip.updates, "weight": net.weight.max().item()}
    for _ in range(int(LONGEST_S / STEP_S)):
        gossip.update_send()
        time.sleep(STEP_S)
        if gossip.update_wait() is not None:
            break
    said |= {"then": gossip.clock, "weight_then": net.weight.max().item()}
    print(json.dumps(said), flush=True)
