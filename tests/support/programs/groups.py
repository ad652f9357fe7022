"""Two groups of two ranks each, w1 and w2, that play scenarios; each group is one node."""

import json
import multiprocessing
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist

from dpwa.launch.ports import free_ports

PATIENCE_S = 60.0


def group_says(value):
    """Return the value of rank 0."""
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def train_beside_the_late(folder, steps, train, gossip):
    """Call `train(step)` so often, and gossip until both ranks of the late group are done."""
    step = 0
    while not group_says(len(list(folder.glob("done*"))) == 2):
        if step < steps:
            train(step)
        step += 1
        gossip.step(1.0)
        if step == steps + 1:
            (folder / "ready").touch()
        time.sleep(0.01)


def play(scenarios, *, timeout_s=PATIENCE_S, **settings):
    """Be a program that is started as `PROGRAM FOLDER SCENARIO...`.

    Each rank calls scenario(name, rank, config, folder) and prints one line of JSON: [scenario,
    name of its node, rank, what it found].
    """
    context = multiprocessing.get_context("fork")
    torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)  # its imports take seconds
    folder, configs = Path(sys.argv[1]), {}
    for scenario in sys.argv[2:]:
        (folder / scenario).mkdir()
        ports = free_ports(4)[::2]  # and one more for each second rank
        nodes = [
            {"name": f"w{index}", "host": "127.0.0.1", "port": port}
            for index, port in enumerate(ports, start=1)
        ]
        configs[scenario] = {"nodes": nodes, "timeout_ms": 5000, "log_level": "error", **settings}

    def run(name, rank):
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / f"store-{name}"), 2)
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
        for scenario, config in configs.items():
            found = scenarios[scenario](name, rank, config, folder / scenario)
            # In one piece, as other ranks write, too.
            sys.stdout.write(json.dumps([scenario, name, rank, found]) + "\n")
            sys.stdout.flush()
        dist.destroy_process_group()

    children = [
        context.Process(target=run, args=(name, rank)) for name in ("w1", "w2") for rank in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(child.exitcode != 0 for child in children))
