"""train.py CONFIG NAME ROUNDS PAUSE_MS: the loop of a user, with the original two calls.

Prints one line of JSON a round; ROUNDS 0: until interrupted.
"""

import itertools
import json
import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

config, name, rounds, pause_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(len(name))
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn(256, 64)
targets = inputs.sum(dim=1, keepdim=True)

conn = DpwaPyTorchAdapter(net, name, config)
loss = torch.tensor(1.0)
try:
    for index in range(rounds) if rounds else itertools.count():
        conn.update_send(loss.item())
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        start = time.monotonic()
        merge = conn.update_wait(loss.item())
        wait_s = time.monotonic() - start
        peer = merge.peer if merge else None
        print(json.dumps({"round": index, "peer": peer, "wait_s": wait_s}), flush=True)
        time.sleep(pause_ms / 1000)
except KeyboardInterrupt:
    pass
finally:
    conn.close()
