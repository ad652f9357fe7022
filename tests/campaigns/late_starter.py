"""The digits of the demonstration, private classes each, and one node that starts late.

Usage: late_starter.py [--late-s 20] [--seed SEED] [--transport auto|tcp] [--nodes N]
                       [--late-initial-state own] [--first-step-s 1]

All nodes are processes. Prints the accuracy of each node before and after the late one arrives, and
the largest fall of any that was there; exits with 1 if that is more than .05.

`--late-initial-state own`: the late one takes over no state at its start, as if it could reach
nobody then. `--first-step-s`: how long the first step takes, as first steps do that compile a model
or start the loading of data: for so long others can read the parameters that a node begins with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

MOST_FALL = 0.05
STEP_S = 0.05
AFTER_S = 12.0  # for how long the nodes go on when the late one has come
BEFORE_S = 2.0  # for how long an accuracy is averaged
HORIZON = 1000  # steps of the schedule
LONGEST_S = 180.0


def work() -> None:
    """Train as one node until the file `stop` is there."""
    import numpy as np
    import torch
    from torch.nn import functional

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.demo.data import label_skewed_shards, load_digits
    from dpwa.demo.training import build_model

    torch.set_num_threads(1)
    folder = Path(os.environ["FOLDER"])
    name, seed = os.environ["NODE"], int(os.environ["SEED"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train, test = load_digits()
    shard = train.take(label_skewed_shards(train.labels, world_size, seed)[rank])
    images, labels = torch.from_numpy(test.images), torch.from_numpy(test.labels)
    model = build_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    rng = np.random.default_rng([seed, rank])
    with (
        (folder / f"{name}.jsonl").open("w") as log,
        DpwaPyTorchAdapter(model, name, str(folder / f"{name}.json"), optimizer=optimizer) as dpwa,
    ):
        loss, step = None, 0
        while not (folder / "stop").exists():
            began = time.monotonic()
            dpwa.update_send(loss)
            step += 1
            done = getattr(dpwa, "updates", step)  # older versions have no such counter
            optimizer.param_groups[0]["lr"] = 0.05 * 0.01 ** min(1.0, done / HORIZON)
            batch = shard.take(rng.integers(len(shard.labels), size=32))
            found = functional.cross_entropy(
                model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels)
            )
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            if step == 1:
                time.sleep(float(os.environ["FIRST_STEP_S"]))
            loss = float(found.detach())
            merge = dpwa.update_wait(loss)
            with torch.no_grad():
                accuracy = float((model(images).argmax(1) == labels).float().mean())
            record = {"at": began, "step": step, "clock": dpwa.clock, "accuracy": accuracy}
            if merge is not None:
                record |= {"peer": merge.peer, "factor": merge.factor, "stale": merge.staleness}
            print(json.dumps(record), file=log, flush=True)
            time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))


@dataclass(frozen=True)
class Fall:
    """What the arrival did to one node.

    Attributes:
        name: of the node.
        before: mean accuracy in the last seconds before.
        lowest: the lowest accuracy afterwards.
        end: mean accuracy in the last seconds of the run.
        usual: how far it fell in as long a time before the arrival.
    """

    name: str
    before: float
    lowest: float
    end: float
    usual: float

    @property
    def fall(self) -> float:
        """How far it fell."""
        return self.before - self.lowest


def run(
    late_s: float = 20.0,
    seed: int = 0,
    transport: str = "auto",
    nodes: int = 4,
    late_initial_state: str = "",
    first_step_s: float = 1.0,
) -> list[Fall]:
    """Let all learn, the last one from `late_s` on; return what became of all, the late one last.

    Raises:
        RuntimeError: a node has failed, or the late one did not come.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = _configure(folder, seed, transport, nodes, late_initial_state)
        stack.callback((folder / "stop").touch)
        shared = {"FOLDER": folder, "SEED": seed, "FIRST_STEP_S": first_step_s}
        running = [_start(names, name, shared, stack) for name in names[:-1]]
        _wait(running, lambda: all(_records(folder, name) for name in names[:-1]))
        time.sleep(late_s)
        running.append(_start(names, names[-1], shared, stack))
        _wait(running, lambda: len(_records(folder, names[-1])) > 0)
        time.sleep(AFTER_S)
        (folder / "stop").touch()
        codes = [process.wait(LONGEST_S) for process in running]
        if any(codes):
            raise RuntimeError("a node has failed")
        arrival = _records(folder, names[-1])[0]["at"]
        return [_fall(name, _records(folder, name), arrival) for name in names]


def _configure(
    folder: Path, seed: int, transport: str, count: int, late_initial_state: str
) -> list[str]:
    from dpwa.launch.ports import free_ports

    nodes = [
        {"name": f"w{number}", "host": "127.0.0.1", "port": port}
        for number, port in enumerate(free_ports(count), start=1)
    ]
    shared = {"nodes": nodes, "seed": seed, "transport": transport, "log_level": "error"}
    for node in nodes:
        own = dict(shared)
        if late_initial_state and node is nodes[-1]:
            own["initial_state"] = late_initial_state
        (folder / f"{node['name']}.json").write_text(json.dumps(own))
    return [node["name"] for node in nodes]


def _start(
    names: list[str], name: str, shared: dict[str, object], stack: ExitStack
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "NODE": name,
        **{key: str(value) for key, value in shared.items()},
        "RANK": str(names.index(name)),
        "WORLD_SIZE": str(len(names)),
    }
    process = subprocess.Popen([sys.executable, __file__, "--work"], env=environment)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _wait(running: list[subprocess.Popen[bytes]], is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not is_so():
        if any(process.poll() is not None for process in running):
            raise RuntimeError("a node has failed")
        if time.monotonic() > end:
            raise RuntimeError(f"a node has not begun after {LONGEST_S} s")
        time.sleep(0.1)


def _records(folder: Path, name: str) -> list[dict]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _fall(name: str, records: list[dict], arrival: float) -> Fall:
    def accuracies(start: float, stop: float) -> list[float]:
        found = [r["accuracy"] for r in records if start <= r["at"] - arrival < stop]
        return found or [records[0]["accuracy"]]

    earlier = accuracies(-AFTER_S - BEFORE_S, -AFTER_S)
    return Fall(
        name,
        before=mean(accuracies(-BEFORE_S, 0.0)),
        lowest=min(accuracies(0.0, AFTER_S + LONGEST_S)),
        end=mean(r["accuracy"] for r in records[-20:]),
        usual=mean(earlier) - min(accuracies(-AFTER_S, 0.0)),
    )


def main() -> None:
    """Run once and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--late-s", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", choices=("auto", "tcp", "shm"), default="auto")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--late-initial-state", choices=("own", "peers", "newest"), default="")
    parser.add_argument("--first-step-s", type=float, default=1.0)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    del options.work
    print(f"one of {options.nodes} nodes comes {options.late_s:g} s late, seed {options.seed}")
    *falls, late = run(**vars(options))
    for fall in falls:
        print(
            f"{fall.name}: accuracy {fall.before:.3f} before, {fall.lowest:.3f} at the lowest "
            f"after, {fall.end:.3f} at the end; fell by {fall.fall:.3f} (before the arrival, in as "
            f"long a time: {fall.usual:.3f})"
        )
    print(f"{late.name} (late): {late.lowest:.3f} at the lowest, {late.end:.3f} at the end")
    largest = max(fall.fall for fall in falls)
    print(f"largest fall: {largest:.3f}; expected at most {MOST_FALL}")
    sys.exit(largest > MOST_FALL)


if __name__ == "__main__":
    main()
