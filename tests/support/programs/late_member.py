"""late_member.py NAME CONFIG VALUE [STEP_S]: start late among nodes that train.

Prints JSON: clock and weight at the start, and after the first merge.
"""

import json
import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

LONGEST_S = 15.0
name, config, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
step_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.02
net = torch.nn.Linear(8, 1, bias=False)
torch.nn.init.constant_(net.weight, value)
with DpwaPyTorchAdapter(net, name, config) as gossip:
    said = {"clock": gossip.clock, "updates": gossip.updates, "weight": net.weight.max().item()}
    for _ in range(int(LONGEST_S / step_s)):
        gossip.update_send()
        time.sleep(step_s)
        if gossip.update_wait() is not None:
            break
    said |= {"then": gossip.clock, "weight_then": net.weight.max().item()}
    print(json.dumps(said), flush=True)
