"""Measure the time of a simulated update by the number of nodes, and of a simulation as arrays.

The runs simulate all messages of all nodes, which gossip without training until they agree. The
time of the start is separate. At the start, nodes connect, and ask each other for an initial state.
Each repetition runs all sizes, so a slow moment of the machine affects all sizes. Each repetition
has its own seed. All times are processor time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from common import print_table

from dpwa.sim.load import load_scenario
from dpwa.sim.samples import Sample
from dpwa.sim.simulate import simulate

MB_OF_KB = 1024.0  # because ru_maxrss is in KB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 250, 1000, 2000])
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a run (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--algorithm", default="gossip", help="(%(default)s)")
    parser.add_argument("--arrays", type=int, default=10_000, help="nodes in arrays (%(default)s)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # seed, for the child process
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(timed(options.nodes[0], options.rounds, options.one, options.algorithm)))
        return
    rows = [
        measured(nodes, options.rounds, seed, options.algorithm)
        for seed in range(options.repetitions)
        for nodes in options.nodes
    ]
    print_table(
        ("nodes", "rounds", "seconds", "start, s", "ms per update", "MB"),
        [
            tuple(f"{value:.4g}" for value in (nodes, options.rounds, *medians(rows, nodes)))
            for nodes in options.nodes
        ],
    )
    arrays = as_arrays(options.arrays, 1000)
    print(json.dumps({"nodes": rows, "arrays": arrays}))


def medians(rows: list[dict[str, Any]], nodes: int) -> list[float]:
    keys = ("seconds", "start_s", "ms_per_update", "most_mb")
    return [statistics.median(row[key] for row in rows if row["nodes"] == nodes) for key in keys]


def measured(nodes: int, rounds: int, seed: int, algorithm: str) -> dict[str, Any]:
    """Simulate a run in a new process, to measure the memory of this run alone."""
    command = [sys.executable, __file__, "--one", str(seed), "--nodes", str(nodes)]
    command += ["--rounds", str(rounds), "--algorithm", algorithm]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def timed(nodes: int, rounds: int, seed: int, algorithm: str) -> dict[str, Any]:
    scenario = {"nodes": nodes, "rounds": rounds, "seed": seed, "detail": "nodes"}
    began, first = time.process_time(), list[float]()

    def watch(sample: Sample) -> bool:
        if sample.round > 0.0 and not first:
            first.append(time.process_time() - began)
        return True

    simulate(load_scenario(scenario, {"algorithm": algorithm, "compute.jitter": 0.2}), watch)
    seconds = time.process_time() - began
    return {
        "nodes": nodes,
        "rounds": rounds,
        "seed": seed,
        "seconds": seconds,
        "start_s": first[0],
        "ms_per_update": 1e3 * (seconds - first[0]) / (nodes * rounds),
        "most_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB_OF_KB,
    }


def as_arrays(nodes: int, rounds: int) -> dict[str, float]:
    """Return the time of a run as arrays, with pulls in lockstep."""
    began = time.process_time()
    simulate(load_scenario({"nodes": nodes, "rounds": rounds, "schedule": "lockstep"}))
    return {"nodes": nodes, "rounds": rounds, "seconds": time.process_time() - began}


if __name__ == "__main__":
    main()
