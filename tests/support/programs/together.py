"""together.py NAME CONFIG STEPS: train under `algorithm: together`; a line of JSON for each step.

Line: step, seconds it took, who keeps pace, and a digest of parameters and optimizer state.
"""

import hashlib
import json
import sys
import time

import torch

import dpwa
import dpwa.adapters.gradients
import dpwa.adapters.pytorch
from dpwa.testing import install_from_environment

name, config, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
install_from_environment()
dpwa.adapters.gradients.BUCKET_BYTES = 8192  # several, as larger models have them
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
rank = int(name.removeprefix("w"))


def digest():
    whole = hashlib.blake2b(digest_size=8)
    states = (state for _, state in sorted(optimizer.state_dict()["state"].items()))
    kept = [value for state in states for _, value in sorted(state.items())]
    for tensor in [*net.parameters(), *kept]:
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
    while gossip.updates < steps:
        began = time.monotonic()
        gossip.update_send()
        generator = torch.Generator().manual_seed(1000 * gossip.updates + rank)
        optimizer.zero_grad()
        loss = net(torch.randn(8, 64, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        gossip.update_wait(loss)
        took_s = time.monotonic() - began
        pace = gossip.connection.node.report()["pace"]["in_pace"]
        row = {"step": gossip.updates, "s": took_s, "pace": pace, "digest": digest()}
        print(json.dumps(row), flush=True)
        time.sleep(0.02)
    print(json.dumps("done"), flush=True)
    sys.stdin.read()
