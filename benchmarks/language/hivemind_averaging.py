"""Train with hivemind 1.1.12. After each epoch of local steps, workers average their parameters.

With the argument `dht`, run only the peer through which the workers find each other.
"""

import os
import sys
import time
from pathlib import Path

import hivemind
from model import BATCH, Worker, build, set_lr

EPOCH_STEPS = 50  # mean number of steps of a worker in an epoch
HOST = ["/ip4/127.0.0.1/tcp/0"]
ADDRESS = Path(os.environ["LANGUAGE_RUN"], "dht")


def meet():
    """Run the first peer of the DHT, and write its address to a file for the workers."""
    address = str(hivemind.DHT(start=True, host_maddrs=HOST).get_visible_maddrs()[0])
    ADDRESS.with_suffix(".new").write_text(address)
    ADDRESS.with_suffix(".new").replace(ADDRESS)
    while True:
        time.sleep(1)


def train():
    """Train as one of the workers, until the supervisor ends this process."""
    net, inner = build()
    worker = Worker()
    while not ADDRESS.exists():
        time.sleep(0.05)
    dht = hivemind.DHT(start=True, initial_peers=[ADDRESS.read_text()], host_maddrs=HOST)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="language",
        batch_size_per_step=BATCH,
        target_batch_size=BATCH * EPOCH_STEPS * worker.plan["workers"],
        optimizer=inner,
        use_local_updates=True,
        delay_state_averaging=True,
        matchmaking_time=2.0,
        averaging_timeout=10.0,
        load_state_timeout=20.0,
        averager_opts={"request_timeout": 1.0},
        tracker_opts={
            "min_refresh_period": 0.2, "default_refresh_period": 0.5, "max_refresh_period": 2.0
        },
    )  # fmt: skip
    if optimizer.tracker.global_epoch > optimizer.local_epoch:
        optimizer.load_state_from_peers()
    step = optimizer.local_epoch * EPOCH_STEPS
    while True:
        set_lr(optimizer, step)
        inputs, targets = worker.batch()
        optimizer.zero_grad()
        net(inputs, targets).backward()
        optimizer.step(batch_size=BATCH)
        step += 1
        worker.stepped(net, step, epoch=optimizer.local_epoch)


if __name__ == "__main__":  # hivemind starts processes that import this file
    meet() if sys.argv[1:] == ["dht"] else train()
