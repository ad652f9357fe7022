"""A node that trains a small model; prints one JSON line every half second.

Usage: victim.py CONFIG NAME PAUSE_MS     (until interrupted)
"""

import json
import sys
import time

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

REPORT_EVERY_S = 0.5
config, name, pause_ms = sys.argv[1], sys.argv[2], float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(len(name))
net = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 1)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn(1024, 64)
targets = inputs.sum(dim=1, keepdim=True)
conn = DpwaPyTorchAdapter(net, name, config)
steps_ms: list[float] = []
loss, reported = torch.tensor(1.0), time.monotonic()
try:
    while True:
        start = time.monotonic()
        conn.update_send(loss.item())
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        conn.update_wait(loss.item())
        now = time.monotonic()
        steps_ms.append(1000 * (now - start))
        if now > reported + REPORT_EVERY_S:
            report = conn._node.report()
            line = {"time": now, "steps_ms": steps_ms, "merges": report["merges"]}
            line |= {key: report.get(key) for key in ("bad_messages", "refused")}
            line["fingerprint"] = conn._node._context.pool.layout().fingerprint.hex()
            print(json.dumps(line), flush=True)
            steps_ms, reported = [], now
        time.sleep(pause_ms / 1000)
except KeyboardInterrupt:
    pass
finally:
    conn.close()
