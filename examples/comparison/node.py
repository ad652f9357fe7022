"""One node of a run: it trains on all the digits and keeps how its parameters have moved."""

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
# A step takes at least so long. One on the digits takes less than a time slice of the operating
# system, which would decide alone who is how many steps ahead of whom.
STEP_S = 0.005
PLAN_NAME = "plan.json"
ATTACKS = {"huge": 1e6, "nan": math.nan}


class Plan(StrictModel):
    """What a run is about, beside its algorithm.

    Attributes:
        nodes: how many, at least 2.
        steps: of each node.
        seed: of the parameters, the batches, and who asks whom.
        every: so many steps from one record to the next.
        attack: what the last node serves in place of parameters, if anything.
        shards: whether all nodes draw from all data, or each mostly from classes of its own.
    """

    nodes: int
    steps: int
    seed: int
    every: int = 1
    attack: Literal["huge", "nan"] | None = None
    shards: Literal["shared", "private"] = "shared"


def main() -> None:
    """Take part in the run of every folder that is named, as the node that the launcher names."""
    torch.set_num_threads(1)
    name, rank = os.environ["DPWA_NAME"], int(os.environ["DPWA_RANK"])
    for argument in sys.argv[1:]:
        folder = Path(argument)
        plan = Plan.model_validate_json((folder / PLAN_NAME).read_bytes())
        take_part(folder, plan, name, rank)
        print(folder, flush=True)


def take_part(folder: Path, plan: Plan, name: str, rank: int) -> None:
    """Train or attack in one run, and leave a record of it."""
    meeting, learner = Meeting(folder, name, plan.nodes), learner_of(rank, plan)
    with DpwaPyTorchAdapter(learner.model, name, folder / "dpwa.yaml") as gossip:
        meeting.wait_for_all("ready")
        record = Recorder(learner.model, plan.every)
        if plan.attack and rank == plan.nodes - 1:
            meeting.arrive("done")
            attack(learner.model, gossip, ATTACKS[plan.attack], meeting)
        else:
            train(learner, gossip, record)
        meeting.wait_for_all("done")  # slower ones still want this one's parameters
        record.save(folder / f"{name}.npz", gossip.connection.node.report()["bytes_sent"])


def learner_of(rank: int, plan: Plan) -> Learner:
    """Return a model in training: all nodes begin alike, and each draws batches of its own."""
    examples, test = load_digits()
    if plan.shards == "private":
        shards = label_skewed_shards(examples.labels, plan.nodes, plan.seed)
        examples = examples.subset(shards[rank])
    task = Task(examples, test, plan.steps, seed=plan.seed * plan.nodes + rank)
    return Learner(build_model(plan.seed), task)


def train(learner: Learner, gossip: DpwaPyTorchAdapter, record: Recorder) -> None:
    """Take all steps of the task, each with an exchange."""
    loss: float | None = None
    for step in range(1, learner.task.steps + 1):
        gossip.update_send(loss)
        began = time.monotonic()
        loss = learner.take_step()
        time.sleep(max(0.0, began + STEP_S - time.monotonic()))
        gossip.update_wait(loss)
        record.step(step)


def attack(model: nn.Module, gossip: DpwaPyTorchAdapter, size: float, meeting: Meeting) -> None:
    """Publish nonsense, with a loss that looks good, until the others have done their work."""
    generator = torch.Generator().manual_seed(0)
    while not meeting.has_all("done"):
        for value in model.parameters():
            signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            value.data.copy_(size * signs)
        gossip.update_send(0.01)
        time.sleep(POLL_S)
        gossip.update_wait(0.01)


class Meeting:
    """Files in a folder by which the processes of a run wait for each other.

    They change nothing of what is compared, as a meeting by gossip would. A node that fails is no
    reason to wait for ever: then the parent stops all.
    """

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._folder = folder
        self._name = name
        self._count = count

    def arrive(self, what: str) -> None:
        """Tell the others that this node is so far."""
        (self._folder / f"{self._name}.{what}").touch()

    def has_all(self, what: str) -> bool:
        """Tell whether all are so far."""
        return len(list(self._folder.glob(f"*.{what}"))) >= self._count

    def wait_for_all(self, what: str) -> None:
        """Arrive, and wait for the others."""
        self.arrive(what)
        while not self.has_all(what):
            time.sleep(POLL_S)


class Recorder:
    """Copies the parameters every few steps; they are judged when all is over, off the clock."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self._model = model
        self._every = every
        self._began = time.monotonic()
        self._records: list[tuple[int, float, np.ndarray]] = []
        self.step(0)

    def step(self, step: int) -> None:
        """Take a copy if one is due after so many steps."""
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
        """Write all of it."""
        np.savez(path, bytes_sent=bytes_sent, **self.arrays())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
