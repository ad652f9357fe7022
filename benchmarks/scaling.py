"""Measure training, consensus, membership and a mass failure with 8 to 10,000 nodes.

The nodes are simulated, with the classes of real nodes. docs/simulator.md explains the figures. The
same seed gives the same figures. The script takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import print_table

PARTS = Path(__file__).resolve().parent / "scale"
MAX_IN_A_VIEW = 256  # the limit of real nodes. This study raises the limit for more nodes
LIVES_S = 600.0  # mean life of a member in runs in which members die one after the other


@dataclass(frozen=True)
class Sizes:
    training: Sequence[int] = (8, 32, 128, 500, 2000)
    consensus: Sequence[int] = (8, 32, 128, 512, 2048, 10_000)
    whole: Sequence[int] = (8, 16, 32, 64, 128)
    alone: Sequence[int] = (64, 128, 256, 512, 1024)
    recovery: Sequence[int] = (32, 250, 1000)  # for runs that lose half of the nodes
    seen: int = 64  # minimum number of nodes in all runs of a size. Small runs are repeated


QUICK = Sizes(training=(8,), consensus=(8,), whole=(8,), alone=(16,), recovery=(8,), seen=8)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short study, which takes seconds")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for figures and pictures")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    options = parser.parse_args()
    found = study(QUICK if options.quick else Sizes(), options.seed)
    for title, headings, rows in tables(found):
        if options.markdown:
            print(f"\n{title}\n")
            for cells in (headings, ["--:"] * len(headings), *rows):
                print(f"| {' | '.join(cells)} |")
        else:
            print_table(headings, rows)
    if not options.markdown:
        print(json.dumps(found))
    if options.out is not None:
        write(found, options.out)


def study(sizes: Sizes, seed: int) -> dict[str, list[Row]]:
    jobs: list[tuple[str, Callable[..., Row], tuple[Any, ...]]] = []
    for nodes in sorted(sizes.alone, reverse=True):  # the longest runs first
        jobs.append(("alone", alone, (nodes, seed, 0.0)))
        jobs.append(("ending", alone, (nodes, seed, LIVES_S)))
    jobs += [
        ("whole", whole, (nodes, seed, sizes.seen)) for nodes in sorted(sizes.whole, reverse=True)
    ]
    topologies = ("random", "exponential", "ring")
    for nodes in sorted(sizes.training, reverse=True):
        jobs += [("training", training, (nodes, topology, seed)) for topology in topologies]
    jobs += [("consensus", consensus, (nodes, seed)) for nodes in sizes.consensus]
    jobs += [("recovery", recovery, (nodes, seed)) for nodes in sizes.recovery]
    found: dict[str, list[Row]] = {name: [] for name, _, _ in jobs}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _begin) as pool:
        futures = [(name, pool.submit(act, *arguments)) for name, act, arguments in jobs]
        for name, future in futures:
            row = future.result()
            never = {key for key, value in row.items() if value == math.inf}
            found[name].append({**row, **dict.fromkeys(never)})
    return {name: sorted(rows, key=lambda row: row["nodes"]) for name, rows in found.items()}


def _begin() -> None:
    sys.path.insert(0, str(PARTS))


def training(nodes: int, topology: str, seed: int) -> Row:
    from training import study as study_training

    return study_training(nodes, topology, seed)


def consensus(nodes: int, seed: int) -> Row:
    from training import consensus as study_consensus

    return study_consensus(nodes, seed)


def recovery(nodes: int, seed: int) -> Row:
    from training import recovery as study_recovery

    return study_recovery(nodes, seed)


def whole(nodes: int, seed: int, seen: int) -> Row:
    from whole_nodes import study as study_whole

    return dict(study_whole(nodes, seed, max(1, seen // nodes)))


def alone(nodes: int, seed: int, lives_s: float) -> Row:
    """Simulate only membership, in a new process, because the limit of a view may be raised."""
    command = [sys.executable, str(PARTS / "views.py"), "--nodes", str(nodes), "--seed", str(seed)]
    command += ["--lives-s", str(lives_s)]
    if nodes > MAX_IN_A_VIEW:
        command += ["--most", str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def tables(found: Mapping[str, Sequence[Row]]) -> list[tuple[str, list[str], list[list[str]]]]:
    by_size: dict[int, dict[str, Row]] = {}
    for row in found["training"]:
        by_size.setdefault(row["nodes"], {})[row["topology"]] = row
    names = list(next(iter(by_size.values())))
    training_rows = [
        [
            str(nodes),
            *(_text(of[name]["seconds_to_target"], 1) for name in names),
            *(_text(of[name]["busiest_by_mean"], 2) for name in names),
            _text(of["random"]["mb_per_step"], 1),
        ]
        for nodes, of in by_size.items()
    ]
    headings = ["nodes", *(f"{name}, s" for name in names), *(f"busiest, {name}" for name in names)]
    return [
        ("Training", [*headings, "MB/step"], training_rows),
        ("Consensus", *_columns(found["consensus"], _CONSENSUS)),
        ("Half lost in training", *_columns(found["recovery"], _RECOVERY)),
        ("Membership, whole nodes", *_columns(found["whole"], _WHOLE)),
        ("Only membership", *_columns(found["alone"], _ALONE)),
        (f"Only membership, nodes live for {LIVES_S:g} s", *_columns(found["ending"], _ENDING)),
    ]


_TRAFFIC = {
    "nodes": ("nodes", 0),
    "bytes/s": ("bytes_per_s", 0),
    "busiest": ("most_bytes_per_s", 0),
    "messages/s": ("messages_per_s", 1),
}
_LOSS = {"bytes/s, half lost": ("bytes_per_s_after_loss", 0), "dead known, s": ("dead_known_s", 1)}
_CONSENSUS = {"nodes": ("nodes", 0), "rounds": ("rounds", 0)}
_RECOVERY = {"nodes": ("nodes", 0), "none lost, s": ("without_s", 1), "half, s": ("with_s", 1)}
_WHOLE = {
    **_TRAFFIC,
    **_LOSS,
    "full rate, s": ("full_rate_s", 0),
    "all known, s": ("all_known_s", 0),
}
_ALONE = {**_TRAFFIC, **_LOSS, "retries/s": ("trials_per_s", 1)}
_ENDING = {**_TRAFFIC, "retries/s": ("trials_per_s", 1), "killed": ("killed", 0)}


def _columns(
    rows: Sequence[Row], columns: Mapping[str, tuple[str, int]]
) -> tuple[list[str], list[list[str]]]:
    return list(columns), [[_text(row[key], n) for key, n in columns.values()] for row in rows]


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def write(found: Mapping[str, Sequence[Row]], folder: Path) -> None:
    sys.path.insert(0, str(PARTS))
    from pictures import draw_membership, draw_training

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaling.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    pictures = [
        draw_training(found["training"], folder),
        draw_membership(found["whole"], found["alone"], folder),
    ]
    sys.stderr.write(f"{folder}: scaling.json, {', '.join(p.name for p in pictures)}\n")


if __name__ == "__main__":
    main()
