"""What an event of a simulated run costs, by the number of nodes (`detail: rules`).

Consensus by asynchronous gossip, every fetch an event of its own. Sizes take turns, so that a slow
moment hits all of them; each repetition is a run with a seed of its own. Beside it, a run of many
nodes in lockstep by arrays.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence
from typing import Any

from common import print_table

from dpwa.sim.load import load_scenario
from dpwa.sim.simulate import simulate
from dpwa.virtual_network import Timer

MB_OF_KB = 1024.0  # ru_maxrss is in KB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--updates", type=int, default=100_000, help="of all nodes (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--algorithm", default="gossip", help="(%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=1000, help="in lockstep, of most nodes (%(default)s)"
    )
    options = parser.parse_args()
    found = events(options)
    lockstep = in_lockstep(max(options.nodes), options.rounds)
    print_table(
        ("nodes", "rounds", "us per event", "least", "most", "by the first", "events per update"),
        [
            (
                str(row["nodes"]),
                row["rounds"],
                *(f"{row[key]:.1f}" for key in ("us_per_event", "least", "most")),
                row["ratio"],
                row["events_per_update"],
            )
            for row in found
        ],
    )
    print(json.dumps({"events": found, "lockstep": lockstep}))


def events(options: argparse.Namespace) -> list[dict[str, Any]]:
    costs: dict[int, list[float]] = {nodes: [] for nodes in options.nodes}
    counts: dict[int, int] = {}
    for seed in range(options.repetitions):
        for nodes in options.nodes:
            rounds = max(1, options.updates // nodes)
            seconds, counts[nodes] = timed(nodes, rounds, seed, options.algorithm)
            costs[nodes].append(1e6 * seconds / counts[nodes])
    first = statistics.median(costs[options.nodes[0]])
    return [
        {
            "nodes": nodes,
            "rounds": max(1, options.updates // nodes),
            "us_per_event": statistics.median(values),
            **spread(values),
            "ratio": statistics.median(values) / first,
            "events_per_update": counts[nodes] / (nodes * max(1, options.updates // nodes)),
        }
        for nodes, values in costs.items()
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}


def timed(nodes: int, rounds: int, seed: int, algorithm: str) -> tuple[float, int]:
    """Simulate a run; return the seconds of a core from its first event on, and how many it had."""
    scenario = {"nodes": nodes, "rounds": rounds, "seed": seed, "detail": "rules"}
    spec = load_scenario(scenario, {"algorithm": algorithm, "compute.jitter": 0.2})
    fired, fire, began = 0, Timer.fire, 0.0

    def counted(timer: Timer) -> None:
        nonlocal fired, began
        began = began or time.process_time()
        fired += 1
        fire(timer)

    Timer.fire = counted  # type: ignore[method-assign]
    try:
        simulate(spec)
    finally:
        Timer.fire = fire  # type: ignore[method-assign]
    return time.process_time() - began, fired


def in_lockstep(nodes: int, rounds: int) -> dict[str, float]:
    """Return what a run of pulls in lockstep takes, and the most memory of this process so far."""
    began = time.perf_counter()
    spec = load_scenario({"nodes": nodes, "rounds": rounds, "schedule": "lockstep"})
    simulate(spec)
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB_OF_KB
    seconds = time.perf_counter() - began
    return {"nodes": nodes, "rounds": rounds, "seconds": seconds, "most_mb": most_mb}


if __name__ == "__main__":
    main()
