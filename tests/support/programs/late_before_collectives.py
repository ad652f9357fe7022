"""late_before_collectives.py: train under `together`, with a node late before each kind of call.

It is late by more than the others wait for it. Then all make the call. Before the first call, a
node leaves out its very first step. Prints a line of JSON: for how long each call has held up this
node, and a digest of the parameters at the end.
"""

import hashlib
import json
import os
import time

import torch

import dpwa
from dpwa.dataset import SharedSampler

LATE_S, STEPS = 1.1, 4
rank, count = int(os.environ["DPWA_RANK"]), int(os.environ["DPWA_WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(rank)
net = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def step(pause_s=0.0, *, leaves_out=False):
    gossip.update_send()
    time.sleep(pause_s)
    if not leaves_out:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    gossip.update_wait()


with dpwa.connect(net, optimizer, algorithm="together", timeout_ms=12_000) as gossip:
    CALLS = {
        "barrier": gossip.barrier,
        "first with its tag": lambda: gossip.all_reduce(torch.ones(2), "mean", tag="score"),
        "broadcast": lambda: gossip.broadcast(torch.ones(3), "w1"),
        "gather": lambda: gossip.all_gather({"rank": rank}),
        "join": gossip.join,
        "table barrier": lambda: sampler.tables.barrier(),
        "end of an epoch": lambda: list(sampler.batches(loader)),
    }
    sampler = SharedSampler(count, gossip, range_size=1)
    loader = torch.utils.data.DataLoader(range(count), sampler=sampler)
    gossip.barrier(60.0)
    began = time.monotonic()
    step(leaves_out=rank == 0)
    gossip.barrier()
    held_up_s = {"first step": time.monotonic() - began}
    for place, (name, call) in enumerate(CALLS.items()):
        is_late = rank == place % count
        for _ in range(STEPS):
            step()
        began = time.monotonic()
        step(LATE_S * is_late, leaves_out=is_late and place == 1)
        call()
        held_up_s[name] = time.monotonic() - began - LATE_S
    for _ in range(100):
        step()
        in_sync = gossip.connection.node.report()["pace"]["in_pace"]
        if all(len(names) == count for names in gossip.all_gather(in_sync).values()):
            break
    digest = hashlib.blake2b(net.weight.detach().numpy().tobytes()).hexdigest()
    print(json.dumps({"held_up_s": held_up_s, "digest": digest}), flush=True)
    gossip.barrier()
