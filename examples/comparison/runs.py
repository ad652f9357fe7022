"""Run variants. With gossip, each node is a process. Without, all nodes share this process."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from comparison.node import PLAN_NAME, Plan, Recorder, learner_of
from comparison.variants import SYNCHRONOUS, Variant

from dpwa.config import load_config
from dpwa.demo.training import Learner
from dpwa.errors import DpwaError
from dpwa.launch import LaunchSpec, run_nodes
from dpwa.launch.ports import free_ports
from dpwa.types import JsonObject

NODE = Path(__file__).with_name("node.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # because there may be more nodes than cores
LOG_LEVEL = "error"  # nodes would warn, because they do not end at exactly the same time
ERROR_LINES = 20

Progress = Callable[["Run"], None]


class RunError(DpwaError):
    """A node has exited with an error."""


@dataclass(frozen=True)
class Run:
    """A variant, the plan of its run, and the transport of the nodes."""

    variant: Variant
    plan: Plan
    transport: str = "tcp"


@dataclass(frozen=True)
class Trajectory:
    """The parameters of one node over time.

    Attributes:
        steps: (n,) the step of each record.
        seconds: (n,) the time of each record, or `None` if all nodes ran in one process.
        vectors: (n, parameters) the parameters.
        bytes_sent: number of bytes that this node sent.
    """

    steps: np.ndarray
    seconds: np.ndarray | None
    vectors: np.ndarray
    bytes_sent: float


def run_all(runs: Sequence[Run], on_done: Progress) -> list[list[Trajectory]]:
    """Do all runs, one after the other. Return the trajectories of all nodes for each run.

    Runs with gossip use the same processes, because the start of a process takes longer than a run.

    Args:
        runs: runs with the same number of nodes.
        on_done: called after each run.

    Raises:
        RunError: a node failed. All nodes have been stopped.
        UserError: a DPWA_* environment variable is invalid, or there are no free ports.
        KeyboardInterrupt: the user interrupted. All nodes have been stopped.
    """
    gossiping = [run for run in runs if run.variant.gossips]
    found = iter(_run_processes(gossiping, on_done) if gossiping else ())
    return [next(found) if run.variant.gossips else _take_turns(run, on_done) for run in runs]


def _run_processes(runs: Sequence[Run], on_done: Progress) -> list[list[Trajectory]]:
    nodes = runs[0].plan.nodes
    names = [f"w{number}" for number in range(1, nodes + 1)]
    ports = free_ports(nodes * len(runs))  # each run has own ports, and no old messages
    with tempfile.TemporaryDirectory(prefix="dpwa-compare-") as place:
        folders = {Path(place, str(number)): run for number, run in enumerate(runs)}
        for folder, run in folders.items():
            own = [{"name": name, "host": "127.0.0.1", "port": ports.pop()} for name in names]
            _prepare(folder, run, own)
        _launch(folders, names, on_done)
        return [[_loaded(folder / f"{name}.npz") for name in names] for folder in folders]


def _prepare(folder: Path, run: Run, nodes: list[JsonObject]) -> None:
    """Write the files that the nodes of a run read."""
    folder.mkdir()
    if run.variant.groups > 1:
        for rank, node in enumerate(nodes):
            node["group"] = f"g{rank * run.variant.groups // len(nodes) + 1}"
    common = {"seed": run.plan.seed, "transport": run.transport, "log_level": LOG_LEVEL}
    settings = {"nodes": nodes, **common, **run.variant.settings}
    config = folder / "dpwa.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    load_config(config)  # raise errors in environment variables before the nodes start
    (folder / PLAN_NAME).write_text(run.plan.model_dump_json(), encoding="utf-8")


def _launch(folders: dict[Path, Run], names: Sequence[str], on_done: Progress) -> None:
    errors: deque[str] = deque(maxlen=ERROR_LINES)
    missing = {str(folder): len(names) for folder in folders}

    def on_line(name: str, stream: str, line: str) -> None:
        if stream == "stderr":
            errors.append(f"{name}: {line}")
        elif line in missing:
            missing[line] -= 1
            if not missing[line]:
                on_done(folders[Path(line)])

    def on_exit(name: str, code: int) -> None:
        if code:
            raise RunError("\n".join([*errors, f"{name} failed (exit code {code})"]))

    command = (sys.executable, str(NODE), *missing)
    spec = LaunchSpec(command, next(iter(folders)) / "dpwa.yaml", names, environment=ENVIRONMENT)
    run_nodes(spec, on_line, on_exit=on_exit)


def _loaded(path: Path) -> Trajectory:
    with np.load(path, allow_pickle=False) as arrays:
        return Trajectory(
            arrays["steps"], arrays["seconds"], arrays["vectors"], float(arrays["bytes_sent"])
        )


def _take_turns(run: Run, on_done: Progress) -> list[Trajectory]:
    """Train all nodes in this process. With synchronous averaging, nodes are equal after each step.

    Each node has its own momentum. An update is linear in gradients and momentum. So a mean of the
    parameters is equal to an update with the mean of the gradients.
    """
    torch.set_num_threads(1)
    plan, averages = run.plan, run.variant.name == SYNCHRONOUS
    learners = [learner_of(rank, plan) for rank in range(plan.nodes)]
    records = [Recorder(learner.model, plan.every) for learner in learners]
    for step in range(1, plan.steps + 1):
        for learner in learners:
            learner.take_step()
        if averages:
            average(learners)
        for record in records:
            record.step(step)
    on_done(run)
    return [_alone_or_in_a_ring(record, plan, averages=averages) for record in records]


@torch.no_grad()
def average(learners: Sequence[Learner]) -> None:
    """Set all learners to the mean of their parameters."""
    for values in zip(*(learner.model.parameters() for learner in learners), strict=True):
        mean = torch.stack(values).mean(dim=0)
        for value in values:
            value.copy_(mean)


def _alone_or_in_a_ring(record: Recorder, plan: Plan, *, averages: bool) -> Trajectory:
    arrays = record.arrays()
    steps, vectors = arrays["steps"], arrays["vectors"]
    # In a ring all-reduce, each node sends (N-1)/N of the vector twice.
    each_step = 2 * (plan.nodes - 1) / plan.nodes * vectors[0].nbytes if averages else 0.0
    return Trajectory(steps, None, vectors, each_step * plan.steps)
