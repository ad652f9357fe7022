"""train.py CONFIG NAME STEP_S [ROUNDS]: the loop of a user, with the original two calls.

It learns a linear map, in steps of a given length. Prints one line of JSON a round; without ROUNDS:
until interrupted.
"""

import itertools
import json
import sys
import time

import torch
from torch.nn import Linear, functional

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

config, name, step_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
rounds = range(int(sys.argv[4])) if len(sys.argv) > 4 else itertools.count()
torch.set_num_threads(1)
torch.manual_seed(0)  # all nodes start from the same parameters, and learn the same map
net, teacher = Linear(300, 100), Linear(300, 100)
torch.manual_seed(1 + int(name[1:]))  # each sees inputs of its own
optimizer = torch.optim.SGD(net.parameters(), lr=1.5)

conn = DpwaPyTorchAdapter(net, name, config)
loss = None
try:
    for index in rounds:
        conn.update_send(loss)
        end = time.monotonic() + step_s
        inputs = torch.randn(64, 300)
        error = functional.mse_loss(net(inputs), teacher(inputs).detach())
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        loss = error.item()
        time.sleep(max(0.0, end - time.monotonic()))  # the step takes so long
        start = time.monotonic()
        merge = conn.update_wait(loss)
        wait_s = time.monotonic() - start
        peer = merge.peer if merge else None
        print(json.dumps({"round": index, "peer": peer, "wait_s": wait_s}), flush=True)
except KeyboardInterrupt:
    pass
finally:
    conn.close()
