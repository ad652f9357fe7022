"""The process of one node: it trains alone, then the very same again with gossip.

Started by the launcher, which says in DPWA_NAME, DPWA_CONFIG, DPWA_RANK and DPWA_WORLD_SIZE which
node it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from dpwa.errors import DpwaError

FINISH_SECONDS = 10.0


def main() -> None:
    # Before torch is imported: an interrupt during its seconds of import must end quietly, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    arguments = _arguments()
    try:
        _work(arguments.out_dir, arguments.steps, arguments.seed)
    except (DpwaError, OSError) as error:
        sys.exit(f"error: {error}")


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dpwa.demo.worker", description=__doc__)
    parser.add_argument("--out-dir", type=Path, required=True, help="folder of logs and weights")
    parser.add_argument("--steps", type=int, required=True, help="training steps in each phase")
    parser.add_argument("--seed", type=int, required=True, help="seed of shards, model and batches")
    return parser.parse_args()


def _work(out_dir: Path, steps: int, seed: int) -> None:
    import torch

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.demo.data import label_skewed_shards, load_digits
    from dpwa.demo.records import Logbook
    from dpwa.demo.training import Learner, Task, build_model, meet, save_weights, train

    torch.set_num_threads(1)
    name, rank = os.environ["DPWA_NAME"], int(os.environ["DPWA_RANK"])
    count = int(os.environ["DPWA_WORLD_SIZE"])
    examples, test = load_digits()
    shard = examples.take(label_skewed_shards(examples.labels, count, seed)[rank])
    task = Task(shard, test, steps, seed=seed * count + rank)
    alone, together = (Learner(build_model(seed), task) for _ in range(2))
    # The node listens from the start: whoever is ready earlier hears "not yet" instead of nothing.
    with (
        DpwaPyTorchAdapter(together.model, name, os.environ["DPWA_CONFIG"]) as gossip,
        Logbook(out_dir / f"{name}.jsonl") as log,
    ):
        train(alone, log)
        log.begin("meeting")
        log.write(0, together.accuracy())
        meet(gossip, count - 1)
        log.begin("gossip")
        train(together, log, gossip)
        log.begin("mixing")
        gossip.finish(seconds=FINISH_SECONDS)
        log.write(steps, together.accuracy())
    save_weights(together.model, out_dir / f"{name}.npz")
