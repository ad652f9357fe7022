"""How runs end: the loop of the README, with `finish`, on the private digits of the demo.

Usage: ends.py [--nodes 3 4 8] [--seeds 1 2 3 4 5] [--steps N] [--stagger S] [--slow-node X]
               [--no-finish]

Every node is a process that sees some of the ten digits only. Prints a line for each run: the
accuracies of its nodes on all ten digits, before `finish` and at the end, and how far apart they
are. With --stagger, nodes start S seconds one after the other; with --slow-node, the last one takes
X times as long as it would for a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

NEAR = 0.01  # what the accuracies of one run may differ by
GOAL = 0.95  # of each run's mean: the demo has about .96
LEARNING_RATE, BATCH_SIZE = 0.02, 32  # the rate does not fall: the last step is as long as any


def work(options):
    """Be one node."""
    import numpy as np
    import torch

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.demo.data import label_skewed_shards, load_digits
    from dpwa.demo.training import build_model

    torch.set_num_threads(1)
    name, config = os.environ["DPWA_NAME"], os.environ["DPWA_CONFIG"]
    rank, count = int(os.environ["DPWA_RANK"]), int(os.environ["DPWA_WORLD_SIZE"])
    (seed,) = options.seeds
    examples, test = load_digits()
    shard = examples.take(label_skewed_shards(examples.labels, count, seed)[rank])
    net, rng = build_model(seed), np.random.default_rng(seed * count + rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def train_step():
        chosen = shard.take(rng.integers(len(shard.labels), size=BATCH_SIZE))
        optimizer.zero_grad()
        scores = net(torch.from_numpy(chosen.images))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(chosen.labels))
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def accuracy():
        guesses = net(torch.from_numpy(test.images)).argmax(dim=1).numpy()
        return float((guesses == test.labels).mean())

    time.sleep(rank * options.stagger)
    is_slow = rank == count - 1
    report, loss = None, None
    with DpwaPyTorchAdapter(net, name, config) as gossip:
        for _ in range(options.steps):
            gossip.update_send(loss)
            began = time.monotonic()
            loss = train_step()
            if is_slow and options.slow_node > 1:
                step_s = max(time.monotonic() - began, options.step_s)
                time.sleep(step_s * (options.slow_node - 1))
            time.sleep(options.step_s)
            gossip.update_wait(loss)
        before = accuracy()
        if not options.no_finish:
            report = gossip.finish()
    found = {"before": before, "accuracy": accuracy(), "report": str(report)}
    if report is not None:
        found.update(waited_s=report.waited_s, averaged_s=report.averaged_s)
        found.update(rounds=report.rounds, missed=dict(report.missed))
    sys.stdout.write(json.dumps(found) + "\n")


def run(nodes, seed, options, folder):
    """Run the nodes; return what each of them has found, by name."""
    from dpwa.launch import LaunchSpec, local_config, run_nodes

    names = [f"w{number + 1}" for number in range(nodes)]
    found = {}

    def on_line(name, stream, line):
        if stream == "stdout" and line.startswith("{"):
            found[name] = json.loads(line)
        else:
            sys.stderr.write(f"{name}: {line}\n")

    more = ["--no-finish"] if options.no_finish else []
    spec = LaunchSpec(
        command=(
            sys.executable, __file__, "--worker", f"--seeds={seed}", f"--steps={options.steps}",
            f"--stagger={options.stagger}", f"--slow-node={options.slow_node}",
            f"--step-s={options.step_s}", *more,
        ),
        config_path=local_config(nodes, folder),
        names=names,
        environment={"OMP_NUM_THREADS": "1", "DPWA_LOG_LEVEL": "error"},
    )  # fmt: skip
    codes = run_nodes(spec, on_line)
    return found if all(code == 0 for code in codes.values()) else {}


def judge(nodes, seed, found):
    """Print how a run ended; return whether it ended well."""
    if len(found) < nodes:
        print(f"{nodes:5} {seed:5}  only {len(found)} nodes ended well: BROKEN", flush=True)
        return False
    befores = [node["before"] for node in found.values()]
    ends = [node["accuracy"] for node in found.values()]
    holds = max(ends) - min(ends) <= NEAR and statistics.fmean(ends) >= GOAL
    waited = max(node.get("waited_s", 0.0) for node in found.values())
    averaged = max(node.get("averaged_s", 0.0) for node in found.values())
    print(
        f"{nodes:5} {seed:5}  {min(befores):.3f} to {max(befores):.3f}  "
        f"{min(ends):.3f} to {max(ends):.3f}  {statistics.fmean(ends):.3f}  "
        f"{waited:6.1f} s {averaged:8.1f} s  {'holds' if holds else 'BROKEN'}",
        flush=True,
    )
    return holds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=600, help="of each node")
    parser.add_argument("--step-s", type=float, default=0.005, help="what a step takes besides")
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between starts")
    parser.add_argument("--slow-node", type=float, default=1.0, help="how much slower one is")
    parser.add_argument("--no-finish", action="store_true", help="end as if there were no finish")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    print("nodes  seed  last step       end             mean   waited  averaged")
    all_hold = True
    for nodes in options.nodes:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                all_hold &= judge(nodes, seed, run(nodes, seed, options, Path(folder)))
    sys.exit(not all_hold)


if __name__ == "__main__":
    main()
