"""Three actors gossip; the worker of one is killed, Ray restarts it, and all merge it again."""

import json
import os
import signal
import threading
import time
from collections import Counter

import ray
import torch

import dpwa

PATIENCE_S = 100.0


class Trainer:
    """A node that gossips in a thread of its own; what it trains does not matter."""

    def __init__(self):
        torch.manual_seed(0)
        self.gossip = dpwa.connect(torch.nn.Linear(8, 1), timeout_ms=500)
        self.merged = Counter()
        threading.Thread(target=self._train, daemon=True).start()

    def _train(self):
        while True:
            merge = self.gossip.step(1.0)
            if merge:
                self.merged[merge.peer] += 1
            time.sleep(0.02)

    def report(self):
        machine = ray.get_runtime_context().get_node_id()
        return self.gossip.connection.node.name, os.getpid(), machine, dict(self.merged)


def reports(trainers):
    """Ask all actors; `None` while one is being restarted."""
    try:
        return ray.get([trainer.report.remote() for trainer in trainers])
    except ray.exceptions.RayActorError:
        return None


def reports_when(trainers, condition):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = reports(trainers)
        if found and condition(found):
            return found
        time.sleep(0.2)
    raise TimeoutError(f"last they said {found}")


def have_merged_all(found):
    return all(len(merged) == len(found) - 1 for *_, merged in found)


def main():
    ray.init(log_to_driver=False)
    actor = ray.remote(num_cpus=0.5, max_restarts=1)(Trainer)
    trainers = [actor.options(name="first").remote(), actor.remote(), actor.remote()]
    before = reports_when(trainers, have_merged_all)
    killed = before[0][1]
    os.kill(killed, signal.SIGKILL)
    again = reports_when(trainers, lambda found: found[0][1] != killed)
    counts = [merged.get("first", 0) for *_, merged in again[1:]]
    after = reports_when(
        trainers,
        lambda found: (
            have_merged_all(found)
            and all(m["first"] > n for (*_, m), n in zip(found[1:], counts, strict=True))
        ),
    )
    said = {
        "names": [name for name, *_ in before],
        "machines": len({machine for _, _, machine, _ in before}),
        "names_after": [name for name, *_ in after],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
