"""Compare `repeat: skip` with `repeat: merge` if one node is many times slower than the others.

Real processes learn the digits. The fast nodes take a fixed number of steps. The slow node trains
until the fast nodes have ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Barrier, Event
from typing import Any

STEP_S = 0.005  # minimum time of a fast node's step
PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4, help="number of nodes (%(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps of a fast node (%(default)s)")
    parser.add_argument("--slower", type=float, default=10.0, help="slowness factor (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    options = parser.parse_args()
    for shards in ("shared", "private"):
        for transport in ("auto", "tcp"):
            runs: dict[str, list[dict[str, float]]] = {"skip": [], "merge": []}
            for seed in range(options.seeds):
                for repeat, outcomes in runs.items():  # alternate, because the machine is noisy
                    settings = {"transport": transport, "repeat": repeat}
                    outcomes.append(run(options, shards, seed, settings))
            for repeat, outcomes in runs.items():
                show(f"{shards:8}{transport:6}{repeat:6}", outcomes)


def show(name: str, outcomes: list[dict[str, float]]) -> None:
    medians = {key: statistics.median(found[key] for found in outcomes) for key in outcomes[0]}
    print(name, "  ".join(f"{key} {value:.3f}" for key, value in medians.items()), flush=True)


def run(
    options: argparse.Namespace, shards: str, seed: int, settings: dict[str, str]
) -> dict[str, float]:
    import torch

    from dpwa.launch.ports import free_ports

    torch.set_num_threads(1)  # before the fork, so that no child inherits a thread pool
    context: Any = multiprocessing.get_context("fork")
    begin, done, told = context.Barrier(options.nodes), context.Event(), context.Queue()
    nodes = [
        {"name": f"w{rank}", "host": "127.0.0.1", "port": port}
        for rank, port in enumerate(free_ports(options.nodes))
    ]
    config = {"nodes": nodes, "merge": "delta", "seed": seed, "log_level": "error", **settings}
    processes = [
        context.Process(
            target=take_part, args=(rank, options, shards, config, begin, done, told), daemon=True
        )
        for rank in range(options.nodes)
    ]
    for process in processes:
        process.start()
    found = dict(told.get(timeout=PATIENCE_S) for _ in processes)
    for process in processes:
        process.join(PATIENCE_S)
    quick = [found[rank] for rank in range(1, options.nodes)]
    return {
        "steps to 93 %": statistics.mean(figures["steps"] for figures in quick),
        "accuracy, fast nodes": statistics.mean(figures["accuracy"] for figures in quick),
        "slow node": found[0]["accuracy"],
        "merges per step": statistics.mean(figures["merges"] for figures in quick) / options.steps,
        "MB received": statistics.mean(figures["mb"] for figures in quick),
    }


def take_part(
    rank: int,
    options: argparse.Namespace,
    shards: str,
    config: dict[str, Any],
    begin: Barrier,
    done: Event,
    told: Any,
) -> None:
    """Train as one node. Node 0 is the slow node."""
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.demo.data import label_skewed_shards, load_digits
    from dpwa.demo.training import Learner, Task, build_model

    seed = config["seed"]
    examples, test = load_digits()
    if shards == "private":
        examples = examples.subset(label_skewed_shards(examples.labels, options.nodes, seed)[rank])
    task = Task(examples, test, options.steps, seed=seed * options.nodes + rank)
    learner = Learner(build_model(seed), task)
    step_s = STEP_S * (options.slower if rank == 0 else 1.0)
    goal, steps, merges, loss = 0, 0, 0, None
    with DpwaPyTorchAdapter(learner.model, f"w{rank}", config) as gossip:
        begin.wait(PATIENCE_S)
        while steps < options.steps and not (rank == 0 and done.is_set()):
            gossip.update_send(loss)
            began = time.monotonic()
            loss = learner.take_step()
            time.sleep(max(0.0, began + step_s - time.monotonic()))
            merges += gossip.update_wait(loss) is not None
            steps += 1
            if rank and not goal and steps % 5 == 0 and learner.accuracy() >= 0.93:
                goal = steps
        done.set()
        mb = gossip.connection.node.report()["bytes_received"] / 1e6
        accuracy = learner.accuracy()
        begin.wait(PATIENCE_S)  # no process leaves before all processes have finished
    figures = {"steps": goal or options.steps, "accuracy": accuracy, "merges": merges, "mb": mb}
    told.put((rank, figures))


if __name__ == "__main__":
    main()
