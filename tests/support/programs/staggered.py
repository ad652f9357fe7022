"""Train one node until it is killed, with a pause in each step.

When it begins, it prints how many steps each part of its state has taken, in its own count.
"""

import argparse
import json
import time

import torch
from torch import nn

import dpwa
from dpwa.testing import install_from_environment

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("config", help="JSON")
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--later", action="store_true", help="the optimizer is given after the module")
options = parser.parse_args()
install_from_environment()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 400), nn.BatchNorm1d(400), nn.Linear(400, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=20_000)
scaler = torch.amp.GradScaler("cpu", growth_interval=20_000)
inputs = torch.randn(16, 6)


def counts():
    steps = [int(state["step"]) for state in optimizer.state.values()] or [0]
    growth = scaler.state_dict()["_growth_tracker"]
    return [gossip.updates, int(net[1].num_batches_tracked), scheduler.last_epoch, growth, *steps]


given = (None, None) if options.later else (optimizer, [scheduler, scaler])
config = json.loads(options.config)
with dpwa.DpwaPyTorchAdapter(net, options.name, config, None, *given) as gossip:
    if options.later:
        gossip.include_optimizer(optimizer, [scheduler, scaler])
    print(json.dumps([counts(), sorted(gossip.connection.node.report()["state"]["donors"])]))
    while True:
        optimizer.zero_grad()
        scaler.scale((net(inputs) - inputs[:, :1]).square().mean()).backward()
        scaler.step(optimizer)
        time.sleep(options.pause)
        gossip.step(0.5)
        scaler.update()
        scheduler.step()
        if gossip.updates % 50 == 0:
            print(gossip.updates, flush=True)
