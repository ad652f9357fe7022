"""digits_member.py NAME SEED LOG CONFIG: learn the digits for ever, and write it down.

CONFIG is JSON, LOG a file that gets a line of JSON each.
"""

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.demo.data import load_digits
from dpwa.demo.training import build_model

STEP_S = 0.1  # eight of these share two cores with those that are starting
LOG_EVERY_S = 0.5
LEARNING_RATE = 0.02

name, seed, log = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
config = json.loads(sys.argv[4])
torch.set_num_threads(1)
examples, _ = load_digits()
images, labels = torch.from_numpy(examples.images), torch.from_numpy(examples.labels)
rng = np.random.default_rng(seed)
net = build_model(seed)  # every node another one: who starts from scratch is seen to
optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9)
uncaught = []
threading.excepthook = lambda args: uncaught.append(str(args.exc_value))


def write(out, **fields):
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    record = {
        "t": time.time(),
        "rss": pages * os.sysconf("SC_PAGESIZE"),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "uncaught": uncaught,
        **fields,
    }
    out.write(json.dumps(record) + "\n")
    out.flush()


def main():
    with log.open("a") as out:
        write(out, event="begins")
        with DpwaPyTorchAdapter(net, name, config, optimizer=optimizer) as gossip:
            write(out, event="joined")
            train(gossip, out)


def train(gossip, out):
    step, merges, loss, gap_s, last, told, distance = 0, 0, None, 0.0, time.monotonic(), 0.0, 0.0
    while True:
        gossip.update_send(loss)
        batch = torch.from_numpy(rng.integers(len(labels), size=32))
        value = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        loss = float(value.detach())
        merge = gossip.update_wait(loss)
        if merge is not None:
            merges, distance = merges + 1, merge.consensus_distance
        step += 1
        time.sleep(STEP_S)
        now = time.monotonic()
        gap_s, last = max(gap_s, now - last), now
        if now - told >= LOG_EVERY_S:
            told = now
            report = gossip.connection.node.report()
            write(
                out,
                event="trains",
                step=step,
                merges=merges,
                gap_s=gap_s,
                peers=sorted(gossip.peers),
                components=report["membership"]["components"],
                distance=distance,
            )
            gap_s = 0.0


try:
    main()
except Exception:
    traceback.print_exc()
    raise
