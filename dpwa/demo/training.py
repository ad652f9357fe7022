"""The model, one training loop, the same with and without gossip, and how nodes begin together."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpwa.adapters.merge import Merge
from dpwa.clock import Deadline, SystemClock
from dpwa.demo.data import Examples
from dpwa.demo.records import MEET_TIMEOUT_S, Logbook
from dpwa.files import written

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

HIDDEN_UNITS = 128
BATCH_SIZE = 32
LEARNING_RATE = 0.05
FINAL_LEARNING_RATE = 0.0005
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
RECORDS_PER_PHASE = 40
ROUND_PAUSE_S = 0.01


def build_model(seed: int) -> nn.Module:
    """Return a perceptron for 64 pixels and 10 digits; the same seed gives the same weights.

    LayerNorm, not batch norm: batches of a skewed shard know only their own classes, and their
    statistics would not fit other nodes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN_UNITS),
            nn.LayerNorm(HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(HIDDEN_UNITS, 10),
        )


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all parameters as arrays under their names (.npz, readable without pickle)."""
    arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
    with written(path) as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]  # numpy's stub takes names for options


@dataclass(frozen=True)
class Task:
    """What one node learns from and is measured with."""

    shard: Examples  # private
    test: Examples  # the same for all nodes
    steps: int
    seed: int  # which examples of the shard each batch draws


class Learner:
    """A model in training: SGD with momentum and a learning rate that falls geometrically.

    Nodes are never quite at the same step. With this schedule, their rates at one moment differ by
    a constant ratio at most; along a cosine, the slowest node would end as the only one that still
    learns, and pull all others to its own shard.
    """

    def __init__(self, model: nn.Module, task: Task) -> None:
        self.model = model
        self.task = task
        self._rng = np.random.default_rng(task.seed)
        self._optimizer = torch.optim.SGD(
            model.parameters(),
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            nesterov=True,
            weight_decay=WEIGHT_DECAY,
        )
        decay = (FINAL_LEARNING_RATE / LEARNING_RATE) ** (1 / task.steps)
        self._schedule = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, decay)

    def step(self) -> float:
        batch = self.task.shard.take(
            self._rng.integers(len(self.task.shard.labels), size=BATCH_SIZE)
        )
        logits = self.model(torch.from_numpy(batch.images))
        loss = functional.cross_entropy(logits, torch.from_numpy(batch.labels))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()
        return float(loss.detach())

    @torch.no_grad()
    def accuracy(self) -> float:
        guesses = self.model(torch.from_numpy(self.task.test.images)).argmax(dim=1)
        return float((guesses.numpy() == self.task.test.labels).mean())


def train(learner: Learner, log: Logbook, gossip: DpwaPyTorchAdapter | None = None) -> None:
    steps = learner.task.steps
    every = math.ceil(steps / RECORDS_PER_PHASE)
    loss: float | None = None
    log.write(0, learner.accuracy())
    for step in range(1, steps + 1):
        if gossip is not None:
            gossip.update_send(loss)
        loss = learner.step()
        log.trained(loss)
        if gossip is not None:
            log.merged(gossip.update_wait(loss))
        if step % every == 0 or step == steps:
            log.write(step, learner.accuracy())


def meet(gossip: DpwaPyTorchAdapter, peers: int) -> None:
    """Gossip until all nodes are there, so that they begin to train together.

    That is when every peer has answered once, or when one has a loss: it trains already, so it has
    met all others. Until then all models are the same, and merging changes nothing. The wait is at
    most `MEET_TIMEOUT_S`.
    """
    deadline = Deadline(SystemClock(), MEET_TIMEOUT_S)
    met: set[str] = set()
    while len(met) < peers and not deadline.expired():
        merge = _exchange(gossip)
        if merge is not None:
            met.add(merge.peer)
            if merge.peer_loss is not None:
                return


def _exchange(gossip: DpwaPyTorchAdapter) -> Merge | None:
    gossip.update_send(None)
    time.sleep(ROUND_PAUSE_S)
    return gossip.update_wait(None)
