"""Train with an optimizer, of some form; print a line of JSON for each step.

Line: step, seconds it took, who keeps pace, and a digest of parameters and optimizer state.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import dpwa
import dpwa.adapters.gradient_averaging
import dpwa.adapters.pytorch
from dpwa.testing import install_from_environment

sys.path.append(str(Path(__file__).parents[2]))
from support.optimizer_forms import FORMS

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("config", help="JSON")
parser.add_argument("steps", type=int)
parser.add_argument("--form", help="of the optimizer; its state is not told then")
parser.add_argument("--whole", action="store_true", help="count steps from the first with all")
parser.add_argument("--kill", type=int, help="after so many updates, with a checkpoint")
options = parser.parse_args()
config = json.loads(options.config)
torch.set_num_threads(1)
install_from_environment()
dpwa.adapters.gradient_averaging.BUCKET_BYTES = 8192  # several, as larger models have them
rank = int(options.name.removeprefix("w"))
torch.manual_seed(rank if options.form else 1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
optimizer = FORMS[options.form](net) if options.form else torch.optim.AdamW(net.parameters(), 0.01)


def digest():
    whole, kept = hashlib.blake2b(digest_size=8), []
    if not options.form:
        states = (state for _, state in sorted(optimizer.state_dict()["state"].items()))
        kept = [value for state in states for _, value in sorted(state.items())]
    for tensor in [*net.parameters(), *kept]:
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


with dpwa.connect(net, optimizer, config=config, name=options.name) as gossip:
    whole = 0  # steps since all nodes were there
    while (whole if options.whole else gossip.updates) < options.steps:
        began = time.monotonic()
        gossip.update_send()
        generator = torch.Generator().manual_seed(1000 * gossip.updates + rank)
        optimizer.zero_grad()
        loss = net(torch.randn(8, 64, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        gossip.update_wait(loss)
        took_s = time.monotonic() - began
        pace = gossip.connection.node.report().get("pace", {}).get("in_pace", [])
        whole += whole > 0 or len(pace) == len(config["nodes"])
        row = {"step": gossip.updates, "s": took_s, "pace": pace, "digest": digest()}
        print(json.dumps(row), flush=True)
        time.sleep(0.02)
        if gossip.updates == options.kill:
            while not gossip.connection.node.report()["state"]["checkpoints"]["written"]:
                time.sleep(0.01)  # it is written beside the training
            os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps("done"), flush=True)
    sys.stdin.read()
