"""The model, and a training loop that is the same with and without gossip."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpwa.demo.data import Examples
from dpwa.demo.records import Phase, Record

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

HIDDEN_UNITS = 128
BATCH_SIZE = 32
LEARNING_RATE = 0.05
FINAL_LEARNING_RATE = 0.0005
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
RECORDS_PER_PHASE = 40
Tell = Callable[[Record], object]


def build_model(seed: int) -> nn.Module:
    """Return a perceptron for 64 pixels and 10 digits. The same seed gives the same weights.

    It has LayerNorm instead of batch norm, because the batch statistics of a shard with few classes
    would not fit other nodes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN_UNITS),
            nn.LayerNorm(HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(HIDDEN_UNITS, 10),
        )


@dataclass(frozen=True)
class Task:
    """The data and the settings of one node's training."""

    shard: Examples  # private to the node
    test: Examples  # the same for all nodes
    steps: int
    seed: int  # seed of the batches


class Learner:
    """A model in training, by SGD with momentum and a learning rate that falls geometrically.

    Nodes are at slightly different steps. With this schedule, their rates at one moment differ at
    most by a constant ratio. With a cosine schedule, only the slowest node would still learn at the
    end, and would pull all others to its own shard.
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

    def take_step(self) -> float:
        batch = self.task.shard.subset(
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


def train(
    learner: Learner, phase: Phase, tell: Tell, gossip: DpwaPyTorchAdapter | None = None
) -> int:
    """Train for all steps, and report progress to `tell`. Return the number of merges."""
    steps = learner.task.steps
    every = math.ceil(steps / RECORDS_PER_PHASE)
    losses: list[float] = []
    merges = 0
    tell(Record(phase=phase, step=0, loss=None, accuracy=learner.accuracy()))
    for step in range(1, steps + 1):
        if gossip is not None:
            gossip.update_send(losses[-1] if losses else None)
        losses.append(learner.take_step())
        if gossip is not None:
            merges += gossip.update_wait(losses[-1]) is not None
        if step % every == 0 or step == steps:
            mean = fmean(losses[-every:])
            accuracy = learner.accuracy()
            tell(Record(phase=phase, step=step, loss=mean, accuracy=accuracy, merges=merges))
    return merges
