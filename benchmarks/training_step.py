"""Measure the time of a training step of two nodes, with gossip in each step and without gossip.

Blocks of steps with gossip and without gossip alternate. Both nodes are always in the same mode.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from statistics import median

from common import (
    ROOT,
    TRANSPORTS,
    BenchmarkError,
    Session,
    plan_of,
    print_table,
    run,
    run_again,
    tell,
)

MODELS = ("resnet18", "cnn")
MODES = ("gossip", "alone")
BATCH_SIZE = 8
MIN_MERGES = 0.9  # minimum share of merges in the steps with gossip
MAX_BYTES = 50_000_000  # size limit of a model (ResNet-18 has 45 MB)


def main() -> None:
    run(_compare, _train, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--blocks", type=int, default=6, help="blocks in each mode")
    parser.add_argument("--steps", type=int, default=10, help="training steps in a block")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=BATCH_SIZE)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    nodes = run_again(plan_of(MAX_BYTES, options.models))
    rows, result = [], {}
    for name in options.models:
        merges = sum(node[name]["merges"] for node in nodes)
        steps = len(nodes) * options.blocks * options.steps
        if merges < MIN_MERGES * steps:
            raise BenchmarkError(f"{name}: {merges} merges in {steps} steps")
        medians = [
            median([second for node in nodes for second in node[name][mode]]) for mode in MODES
        ]
        with_ms, without_ms = (1000 * seconds for seconds in medians)
        rows.append([name, with_ms, without_ms, f"{with_ms / without_ms:.3f}"])
        result[name] = {"gossip_ms": with_ms, "alone_ms": without_ms}
    print_table(["model", "with gossip, ms", "without, ms", "ratio"], rows)
    print(json.dumps(result))


def _train(options: argparse.Namespace) -> None:
    with Session() as session:
        tell({name: _alternate(session, name, options) for name in options.models})


def _alternate(session: Session, name: str, options: argparse.Namespace) -> dict:
    from measures import DpwaPyTorchAdapter, meet

    config = session.plan.config(name, transport=options.transport)
    step = Step(name, options.device, options.batch)
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    merges = 0
    with DpwaPyTorchAdapter(step.model, session.name, config) as gossip:
        meet(gossip)
        for block in range(-1, options.blocks):  # the first block does not count
            for mode in MODES if block % 2 else MODES[::-1]:
                session.barrier()
                for _ in range(options.steps):
                    before = time.perf_counter()
                    merged = step(gossip if mode == "gossip" else None)
                    if block >= 0:
                        seconds[mode].append(time.perf_counter() - before)
                        merges += merged
        session.barrier()
    return {**seconds, "merges": merges}


class Step:
    """A training step of a model on a random batch. The call returns whether a peer was merged."""

    def __init__(self, name: str, device: str = "cpu", batch: int = BATCH_SIZE) -> None:
        import torch

        torch.manual_seed(0)
        self.model = _model(name).to(device)
        self._images = torch.randn(batch, 3, 32, 32, device=device)
        self._labels = torch.randint(10, (batch,), device=device)
        self._wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self._loss = torch.nn.CrossEntropyLoss()

    def __call__(self, gossip) -> bool:
        if gossip is not None:
            gossip.update_send()
        loss = self._loss(self.model(self._images), self._labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        merge = None if gossip is None else gossip.update_wait(loss)
        self._wait()
        return merge is not None


def _model(name: str):
    if name == "cnn":
        return _cnn()
    sys.path.insert(0, str(ROOT / "examples" / "cifar10"))
    from models import resnet18

    return resnet18()


def _cnn():
    """Return three convolutions and two linear layers, with 0.29 M parameters, for 32x32 images."""
    from torch import nn

    channels, layers = (3, 32, 64, 128), []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    hidden = [nn.Flatten(), nn.Linear(128 * 4 * 4, 96), nn.ReLU(), nn.Linear(96, 10)]
    return nn.Sequential(*layers, *hidden)


if __name__ == "__main__":
    main()
