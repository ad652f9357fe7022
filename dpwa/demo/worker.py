"""The process of one node, which trains alone and then again with gossip.

The launcher starts it, and sets DPWA_NAME, DPWA_CONFIG, DPWA_RANK and DPWA_WORLD_SIZE.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from dpwa.errors import CollectiveError, DpwaError

if TYPE_CHECKING:
    from dpwa.demo.records import Record

MEET_SECONDS = 15.0
FINISH_SECONDS = 10.0


def main() -> None:
    # Set before torch is imported, because an interrupt during the import must also end quietly.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    arguments = _arguments()
    try:
        _work(arguments.steps, arguments.seed)
    except (DpwaError, OSError) as error:
        sys.exit(f"error: {error}")


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dpwa.demo.worker", description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="training steps in each phase")
    parser.add_argument("--seed", type=int, required=True, help="seed of shards, model and batches")
    return parser.parse_args()


def _work(steps: int, seed: int) -> None:
    import torch

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.demo.data import label_skewed_shards, load_digits
    from dpwa.demo.records import Record
    from dpwa.demo.training import Learner, Task, build_model, train

    torch.set_num_threads(1)
    name, rank = os.environ["DPWA_NAME"], int(os.environ["DPWA_RANK"])
    count = int(os.environ["DPWA_WORLD_SIZE"])
    examples, test = load_digits()
    shard = examples.subset(label_skewed_shards(examples.labels, count, seed)[rank])
    task = Task(shard, test, steps, seed=seed * count + rank)
    alone, together = (Learner(build_model(seed), task) for _ in range(2))
    # The node listens from the start, so a faster node gets the answer "not ready".
    with DpwaPyTorchAdapter(together.model, name, os.environ["DPWA_CONFIG"]) as gossip:
        train(alone, "alone", _tell)
        _tell(Record(phase="meeting", step=0, loss=None, accuracy=together.accuracy()))
        with contextlib.suppress(CollectiveError):  # nodes start without a failed node
            gossip.barrier(timeout_s=MEET_SECONDS)
        merges = train(together, "gossip", _tell, gossip)
        report = gossip.finish(seconds=FINISH_SECONDS)
        _tell(
            Record(
                phase="finish",
                step=steps,
                loss=None,
                accuracy=together.accuracy(),
                merges=merges,
                consensus_distance=report.distance_after,
            )
        )


def _tell(record: Record) -> None:
    sys.stdout.write(record.model_dump_json() + "\n")
    sys.stdout.flush()
