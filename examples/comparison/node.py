"""Train one node of each run on the digits, and record the parameters of the node."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.demo.data import label_skewed_shards, load_digits
from dpwa.demo.training import Learner, Task, build_model
from dpwa.types import StrictModel

POLL_S = 0.005
# The minimum time of a step. A step on the digits takes less than a time slice of the operating
# system. Without a minimum, some nodes would take many steps before others run at all.
STEP_S = 0.005
PLAN_NAME = "plan.json"
ATTACKS = {"huge": 1e6, "nan": math.nan}


class Plan(StrictModel):
    """The plan of a run, without its algorithm.

    Attributes:
        nodes: number of nodes, at least 2.
        steps: number of steps of each node.
        seed: seed of the parameters, the batches, and the picked peers.
        every: number of steps between two records.
        attack: the values that the last node serves instead of its parameters, or `None`.
        shards: shared: nodes sample all data. private: each node has mostly a few classes.
    """

    nodes: int
    steps: int
    seed: int
    every: int = 1
    attack: Literal["huge", "nan"] | None = None
    shards: Literal["shared", "private"] = "shared"


def main() -> None:
    """Take part in the runs of all folders on the command line, as the node in DPWA_NAME."""
    torch.set_num_threads(1)
    name, rank = os.environ["DPWA_NAME"], int(os.environ["DPWA_RANK"])
    for argument in sys.argv[1:]:
        folder = Path(argument)
        plan = Plan.model_validate_json((folder / PLAN_NAME).read_bytes())
        take_part(folder, plan, name, rank)
        print(folder, flush=True)


def take_part(folder: Path, plan: Plan, name: str, rank: int) -> None:
    """Train or attack in one run, and write the record of this node."""
    meeting, learner = Meeting(folder, name, plan.nodes), learner_of(rank, plan)
    with DpwaPyTorchAdapter(learner.model, name, folder / "dpwa.yaml") as gossip:
        meeting.wait_for_all("ready")
        record = Recorder(learner.model, plan.every)
        if plan.attack and rank == plan.nodes - 1:
            meeting.arrive("done")
            attack(learner.model, gossip, ATTACKS[plan.attack], meeting)
        else:
            train(learner, gossip, record)
        meeting.wait_for_all("done")  # slower nodes still fetch from this node until then
        record.save(folder / f"{name}.npz", gossip.connection.node.report()["bytes_sent"])


def learner_of(rank: int, plan: Plan) -> Learner:
    """Return the learner of a rank. All ranks have equal parameters, but different batches."""
    examples, test = load_digits()
    if plan.shards == "private":
        shards = label_skewed_shards(examples.labels, plan.nodes, plan.seed)
        examples = examples.subset(shards[rank])
    task = Task(examples, test, plan.steps, seed=plan.seed * plan.nodes + rank)
    return Learner(build_model(plan.seed), task)


def train(learner: Learner, gossip: DpwaPyTorchAdapter, record: Recorder) -> None:
    """Take all steps, and call `update_send` and `update_wait` in each step."""
    loss: float | None = None
    for step in range(1, learner.task.steps + 1):
        gossip.update_send(loss)
        began = time.monotonic()
        loss = learner.take_step()
        time.sleep(max(0.0, began + STEP_S - time.monotonic()))
        gossip.update_wait(loss)
        record.step(step)


def attack(model: nn.Module, gossip: DpwaPyTorchAdapter, size: float, meeting: Meeting) -> None:
    """Publish wrong values with a low loss, until the other nodes have finished."""
    generator = torch.Generator().manual_seed(0)
    while not meeting.has_all("done"):
        for value in model.parameters():
            signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            value.data.copy_(size * signs)
        gossip.update_send(0.01)
        time.sleep(POLL_S)
        gossip.update_wait(0.01)


class Meeting:
    """A barrier of files, with which the processes of a run wait for each other.

    Unlike messages between nodes, files do not change the compared traffic. If a node fails, the
    parent process stops all nodes, so no node waits forever.
    """

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._folder = folder
        self._name = name
        self._count = count

    def arrive(self, what: str) -> None:
        """Announce that this node has reached a point of the run."""
        (self._folder / f"{self._name}.{what}").touch()

    def has_all(self, what: str) -> bool:
        """Return whether all nodes have reached a point of the run."""
        return len(list(self._folder.glob(f"*.{what}"))) >= self._count

    def wait_for_all(self, what: str) -> None:
        """Announce that this node has reached a point of the run, and wait for the others."""
        self.arrive(what)
        while not self.has_all(what):
            time.sleep(POLL_S)


class Recorder:
    """A record of the parameters every few steps, for the evaluation after the run."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self._model = model
        self._every = every
        self._began = time.monotonic()
        self._records: list[tuple[int, float, np.ndarray]] = []
        self.step(0)

    def step(self, step: int) -> None:
        """Copy the parameters if `step` is a multiple of `every`."""
        if step % self._every == 0:
            vector = parameters_to_vector(self._model.parameters()).detach().numpy().copy()
            self._records.append((step, time.monotonic() - self._began, vector))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return steps (n,), seconds (n,) and vectors (n, parameters)."""
        steps, seconds, vectors = zip(*self._records, strict=True)
        return {
            "steps": np.array(steps),
            "seconds": np.array(seconds),
            "vectors": np.stack(vectors),
        }

    def save(self, path: Path, bytes_sent: int) -> None:
        """Write all copies of the parameters to a file."""
        np.savez(path, bytes_sent=bytes_sent, **self.arrays())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
