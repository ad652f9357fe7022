"""Train all workers of a swarm on one of the simulator's tasks, in lockstep."""

from __future__ import annotations

import numpy as np
from swarm import Swarm

from dpwa.sim.tasks import TASKS, TrainingTask


def make(name: str, nodes: int, seed: int, **options: float | str) -> TrainingTask:
    return TASKS[name](TASKS[name].options(**options), nodes, seed)


def train_round(swarm: Swarm, task: TrainingTask) -> None:
    """Do one round. All workers publish and ask, then all take a step, and then all merge."""
    swarm.publish_snapshots(swarm.workers)
    swarm.ask(swarm.workers)
    x = swarm.x
    losses = task.step(x, np.arange(len(x)))
    for worker, row, loss in zip(swarm.workers, x, losses, strict=True):
        worker.model.array[...] = row
        worker.loss = float(loss)
    swarm.merge(swarm.workers)


def distance(swarm: Swarm) -> float:
    x = swarm.x
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))
