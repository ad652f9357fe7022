"""The digits of the demonstration, learnt by nodes that are far apart: each knows a few of them.

Usage: digits_far_apart.py {lossy,slow} [--seed SEED] [--nodes N]

lossy: every node in a network namespace of its own, behind a link of 20 Mbit/s that loses 5 % of
    the packets (as root; see CONTRIBUTING.md).
slow: every node behind a proxy that delays what goes either way by 200 ms.
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

from dpwa.launch.ports import free_ports
from dpwa.testing import Namespaces, TcpProxy

GOAL = 0.93
RATE_MBIT = 20
LOSS = 0.05
DELAY_S = 0.2
PORT = 5000
LONGEST_S = 280.0

WORKER = (sys.executable, "-c", "from dpwa.demo.worker import main; main()")
SETTINGS = {
    "algorithm": "gossip",
    "merge": "delta",
    "transport": "tcp",  # snapshots too go through the link
    "timeout_ms": 4000,
    "log_level": "error",
}


@dataclass(frozen=True)
class Place:
    """Where a node runs.

    Attributes:
        listens: its own entry of the configuration.
        reached: the entry that the others have of it.
        command: what runs it there.
    """

    listens: dict
    reached: dict
    command: list[str]


@dataclass(frozen=True)
class Outcome:
    """What became of one node."""

    name: str
    accuracy_alone: float
    accuracy: float
    merges: int


def lossy_places(count: int, command: list[str], stack: ExitStack) -> list[Place]:
    """Hosts behind thin links that lose packets."""
    hosts = stack.enter_context(Namespaces(count, rate_mbit=RATE_MBIT, loss=LOSS))
    nodes = [
        {"name": f"w{number}", "host": host.address, "port": PORT}
        for number, host in enumerate(hosts, start=1)
    ]
    return [
        Place(node, node, host.command(command)) for node, host in zip(nodes, hosts, strict=True)
    ]


def slow_places(count: int, command: list[str], stack: ExitStack) -> list[Place]:
    """Nodes of this machine, each behind a proxy that takes its time."""
    places = []
    for number, port in enumerate(free_ports(count), start=1):
        proxy = stack.enter_context(TcpProxy("127.0.0.1", port, delay_s=DELAY_S, seed=number))
        node = {"name": f"w{number}", "host": "127.0.0.1", "port": port}
        places.append(Place(node, {**node, "port": proxy.port}, command))
    return places


@dataclass(frozen=True)
class Distance:
    """How far apart nodes are, and how many steps they train then: each waits for a peer."""

    places: Callable[[int, list[str], ExitStack], list[Place]]
    steps: int


DISTANCES = {
    "lossy": Distance(lossy_places, 600),
    "slow": Distance(slow_places, 200),
}


def run(link: str, seed: int, nodes: int = 4) -> list[Outcome]:
    """Let all nodes learn, and return what became of them.

    Raises:
        RuntimeError: a node has failed, or took too long.
    """
    distance = DISTANCES[link]
    settings = {**SETTINGS, "seed": seed}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [*WORKER, f"--steps={distance.steps}", f"--seed={seed}"]
        places = distance.places(nodes, command, stack)
        _run_all(places, settings, folder, stack)
        return [_outcome(place.listens["name"], folder) for place in places]


def _run_all(places: list[Place], settings: dict, folder: Path, stack: ExitStack) -> None:
    processes = []
    for rank, place in enumerate(places):
        name = place.listens["name"]
        config = folder / f"{name}.yaml"
        known = [place.listens if other is place else other.reached for other in places]
        config.write_text(json.dumps({**settings, "nodes": known}))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DPWA_NAME": name,
            "DPWA_CONFIG": str(config),
            "DPWA_RANK": str(rank),
            "DPWA_WORLD_SIZE": str(len(places)),
        }
        out = stack.enter_context((folder / f"{name}.jsonl").open("wb"))
        process = subprocess.Popen(place.command, env=environment, stdout=out)
        stack.callback(process.wait)
        stack.callback(process.kill)
        processes.append(process)
    end = time.monotonic() + LONGEST_S
    codes = [process.wait(max(0.0, end - time.monotonic())) for process in processes]
    if any(codes):
        raise RuntimeError(f"exit codes of the nodes: {codes}")


def _outcome(name: str, folder: Path) -> Outcome:
    records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    alone = [record for record in records if record["phase"] == "alone"][-1]
    last = records[-1]
    return Outcome(name, alone["accuracy"], last["accuracy"], last["merges"])


def main() -> None:
    """Run once and print what came out; exit with 1 when a node stayed below the goal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("link", choices=tuple(DISTANCES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=4)
    options = parser.parse_args()
    print(f"link {options.link}, seed {options.seed}, {DISTANCES[options.link].steps} steps")
    began = time.monotonic()
    outcomes = run(**vars(options))
    for outcome in outcomes:
        print(
            f"{outcome.name}: accuracy {outcome.accuracy:.3f} "
            f"(alone {outcome.accuracy_alone:.3f}), {outcome.merges} merges"
        )
    print(f"{time.monotonic() - began:.1f} s")
    sys.exit(any(outcome.accuracy < GOAL for outcome in outcomes))


if __name__ == "__main__":
    main()
