"""optimizer_form.py NAME CONFIG FORM STEPS KILL: train with an optimizer of some form.

A line of JSON for each step: step, who keeps pace, and a digest of the parameters. It takes STEPS
steps, under `together` as many from the first with all nodes on. With KILL, the node is killed
after so many.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import dpwa

sys.path.append(str(Path(__file__).parents[2]))
from support.optimizer_forms import FORMS

name, config, form, steps, kill = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]
torch.set_num_threads(1)
torch.manual_seed(int(name.removeprefix("w")))
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = FORMS[form](net)


def digest():
    whole = hashlib.blake2b(digest_size=8)
    for tensor in net.parameters():
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


whole = 0
with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
    while (whole if len(config["nodes"]) > 1 else gossip.updates) < int(steps):
        gossip.update_send()
        generator = torch.Generator().manual_seed(gossip.updates)
        optimizer.zero_grad()
        loss = net(torch.randn(8, 6, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        gossip.update_wait(loss)
        pace = gossip.connection.node.report().get("pace", {}).get("in_pace")
        whole += whole > 0 or len(pace or ()) == len(config["nodes"])
        print(json.dumps({"step": gossip.updates, "pace": pace, "digest": digest()}), flush=True)
        time.sleep(0.01)
        if gossip.updates == int(kill):
            os.kill(os.getpid(), signal.SIGKILL)
