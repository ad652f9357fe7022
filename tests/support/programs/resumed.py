"""Train a node to its end, by a loop of the docs, or kill it at some moment of that.

At the end it prints what it began and ended with, and a digest of all that a training has.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dpwa
from dpwa.adapters.optimizer import GossipOptimizer

parser = argparse.ArgumentParser()
parser.add_argument("config", help="JSON")
parser.add_argument("loop")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--schedule", default="step")
parser.add_argument("--name", default="w1")
parser.add_argument("--pause", type=float, default=0.002, help="for a checkpoint to be written")
parser.add_argument("--kill", type=int, default=0, help="at which moment; 0: never")
options = parser.parse_args()
moments = 0


def moment():
    """Be killed here, if it is time."""
    global moments
    moments += 1
    if moments == options.kill:
        folder = json.loads(options.config).get("checkpoint", {}).get("dir")
        while folder and not [*Path(folder).glob("w*-*.json")]:
            time.sleep(0.01)  # a disk may be slower than these steps
        os.kill(os.getpid(), signal.SIGKILL)


def batch(done):
    generator = torch.Generator().manual_seed(done)
    return torch.randn(16, 6, generator=generator)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
if options.schedule == "step":
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
else:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=options.steps + 1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)


def backward(done):
    time.sleep(options.pause)
    inputs = batch(done)
    optimizer.zero_grad()
    loss = (net(inputs) - inputs[:, :1].sin()).square().mean()
    moment()
    scaler.scale(loss).backward()
    moment()
    return loss.item()


def step():
    scaler.step(optimizer)
    scaler.update()
    moment()


def two_calls(gossip):
    gossip.update_send()
    moment()
    loss = backward(gossip.updates - 1)
    step()
    scheduler.step()
    gossip.update_wait(loss)
    moment()


def two_calls_and_then_the_schedule(gossip):
    gossip.update_send()
    loss = backward(gossip.updates - 1)
    step()
    gossip.update_wait(loss)
    moment()
    scheduler.step()


def step_first(gossip):
    loss = backward(gossip.updates)
    step()
    scheduler.step()
    gossip.update_send(loss)
    moment()
    gossip.update_wait(loss)


def wait_first(gossip):
    loss = backward(gossip.updates)
    step()
    scheduler.step()
    gossip.update_wait(loss)
    moment()
    gossip.update_send(loss)


def one_call(gossip):
    loss = backward(gossip.updates)
    step()
    scheduler.step()
    gossip.step(loss)
    moment()


def one_call_and_then_the_schedule(gossip):
    loss = backward(gossip.updates)
    step()
    gossip.step(loss)
    moment()
    scheduler.step()


def followed(gossip):
    """The gossip is in the step of the optimizer; then come the scaler and the schedule."""
    backward(gossip.updates)
    step()
    moment()
    scheduler.step()


def digest(*states):
    found = hashlib.blake2b(digest_size=8)
    for state in states:
        for name, value in sorted(state.items()):
            found.update(repr((name, value.tolist() if torch.is_tensor(value) else value)).encode())
    return found.hexdigest()


def train(gossip):
    global optimizer
    if options.loop == "attached":
        gossip.attach(optimizer)
    elif options.loop == "wrapped":
        optimizer = GossipOptimizer(optimizer, gossip)
    loop = globals().get(options.loop, followed)
    began = gossip.updates
    while gossip.updates < options.steps:
        loop(gossip)
        moment()
    kept = optimizer.state_dict()["state"].values()
    settings = [{k: v for k, v in each.items() if k != "params"} for each in optimizer.param_groups]
    ended = gossip.updates, gossip.clock, scheduler.last_epoch
    whole = digest(net.state_dict(), *kept, *settings, scheduler.state_dict(), scaler.state_dict())
    gossip.finish()
    return began, ended, whole


def train_numbers(connection):
    """The loop of README for arrays; the state is the only thing that it has."""
    values = np.zeros(8)
    if found := connection.fetch_state():
        values, _ = found
    began = connection.updates
    while connection.updates < options.steps:
        moment()
        connection.update_send(values, 0.5)
        moment()
        time.sleep(options.pause)
        values = values * 0.9 + connection.updates
        moment()
        connection.update_wait(0.5)
        moment()
    ended = connection.updates, connection.clock, 0
    connection.finish(values)
    return began, ended, values.tolist()


config = json.loads(options.config)
if options.loop == "numbers":
    with dpwa.DpwaConnection(options.name, config) as connection:
        told = train_numbers(connection)
else:
    schedules = [scheduler, scaler]
    with dpwa.DpwaPyTorchAdapter(net, options.name, config, None, optimizer, schedules) as gossip:
        told = train(gossip)
json.dump(told, sys.stdout)
