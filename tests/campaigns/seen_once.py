"""Processes that share one data set, some of which are killed: each item is acknowledged once.

Usage: seen_once.py [--runs N] [--seed SEED] [--nodes N] [--kills N] [--stops N] [--items N] [-v]

Each process goes through an epoch of a `SharedSampler` by its `batches`. At moments that the seed
chooses, by how much was trained on so far, one of those that live is killed, and started again
under its name up to a second later, or is stopped for so long that the others leave it out, and
goes on (`--stops`). Every life of a process writes down what it has trained on
before it asks for the next batch, and how much it knows to be acknowledged. At the end, the table
says which life has acknowledged each range: all ranges must be there, all processes must read the
same, that life must have trained on every item of it, and what a life knew to be acknowledged must
still be so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from dpwa import DpwaConnection
from dpwa.dataset import SharedSampler
from dpwa.launch.ports import free_ports
from dpwa.policy.range_leases import EPOCH, HOLDER, IS_DONE

BATCH = 48  # which does not divide a range
KILL_FROM, KILL_UNTIL = 0.05, 0.8  # share of the items that were trained on
AWAY_S = 1.0  # the longest time until a process is started again
STOPPED_S = 8.0
LOOK_EVERY_S = 0.02
LIMIT_S = 240.0


@dataclass
class Run:
    """Processes, and what is to happen to them.

    Attributes:
        faults: how many items were trained on when something happens to a process, and what.
        pids: of those that live, by name.
        lives: how many lives each name has had.
        returns: when a process that was killed is to be started again, by name.
        wakes: when one that was stopped is to go on.
        victims: what has happened to whom.
    """

    options: argparse.Namespace
    rng: random.Random
    folder: Path
    faults: list[tuple[int, signal.Signals]]
    pids: dict[str, int] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    returns: dict[str, float] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)
    victims: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Names of all processes."""
        return [f"w{number + 1}" for number in range(self.options.nodes)]

    def log(self, name: str) -> Path:
        """Where the present life of a process writes."""
        return self.folder / f"{name}.{self.lives[name]}.log"


# The processes


def train(name: str, run: Run) -> None:
    """Go through an epoch, and write down what happens."""
    torch.set_num_threads(1)
    options = run.options
    with (
        run.log(name).open("a", buffering=1) as log,
        DpwaConnection(name, run.folder / "dpwa.yaml") as connection,
    ):

        def note(**said: object) -> None:
            log.write(json.dumps(said) + "\n")

        sampler = SharedSampler(options.items, connection, range_size=options.range_size)
        note(life=sampler._table.leases._own)
        loader = DataLoader(
            range(options.items),
            batch_size=BATCH,
            sampler=sampler,
            num_workers=options.workers,
            multiprocessing_context="forkserver" if options.workers else None,
        )
        for batch in sampler.batches(loader):
            time.sleep(options.step_s)
            note(trained=batch.tolist(), acknowledged=sampler.acknowledged)
        rows = sampler._table._table.get().tolist()
        note(rows=rows, acknowledged=sampler.acknowledged, refused=sampler.refused)
        while not (run.folder / "over").exists():
            time.sleep(LOOK_EVERY_S)


def fork(run: Run, name: str) -> None:
    """Start a process, or start it again: it has imported everything already."""
    run.lives[name] = run.lives.get(name, 0) + 1
    run.log(name).touch()
    pid = os.fork()
    if pid:
        run.pids[name] = pid
        return
    status = 1
    try:
        output = os.open(run.folder / f"{name}.err", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        train(name, run)
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# The run


def lines_of(path: Path) -> list[dict]:
    """Return what a life has written, but for a line that its death has cut short."""
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]


def trained(run: Run) -> int:
    """Return how many items were trained on so far, by all lives, as often as they were."""
    said = [line for path in run.folder.glob("*.log") for line in lines_of(path)]
    return sum(len(line.get("trained", ())) for line in said)


def has_said(run: Run, name: str, what: str) -> bool:
    """Tell whether the present life of a process has written something of a kind."""
    return any(what in line for line in lines_of(run.log(name)))


def go_on(run: Run) -> bool:
    """Kill and start processes as it is time; return whether all have ended the epoch."""
    for name, pid in run.pids.items():
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise AssertionError(f"{name} has ended by itself:\n{errors_of(run)}")
    at_work = [n for n in run.pids if n not in run.wakes and has_said(run, n, "life")]
    if run.faults and at_work and trained(run) >= run.faults[0][0]:
        do_harm(run, run.rng.choice(sorted(at_work)), run.faults.pop(0)[1])
    for name in [name for name, at in run.wakes.items() if time.monotonic() >= at]:
        del run.wakes[name]
        os.kill(run.pids[name], signal.SIGCONT)
    for name in [name for name, at in run.returns.items() if time.monotonic() >= at]:
        del run.returns[name]
        fork(run, name)
    return len(run.pids) == len(run.names) and all(has_said(run, n, "rows") for n in run.names)


def do_harm(run: Run, victim: str, fault: signal.Signals) -> None:
    """Kill a process, or stop it; note when it is to be there again."""
    run.victims.append(victim if fault is signal.SIGKILL else f"({victim})")
    os.kill(run.pids[victim], fault)
    if fault is signal.SIGKILL:
        os.waitpid(run.pids.pop(victim), 0)
        run.returns[victim] = time.monotonic() + run.rng.uniform(0.0, AWAY_S)
    else:
        run.wakes[victim] = time.monotonic() + STOPPED_S


def what_is_wrong(run: Run) -> str:
    """Compare what the table says with what each life has written."""
    lives = {path: lines_of(path) for path in sorted(run.folder.glob("*.log"))}
    tables = [line["rows"] for lines in lives.values() for line in lines if "rows" in line]
    if any([row[HOLDER] for row in rows] != [row[HOLDER] for row in tables[0]] for rows in tables):
        return "the processes have read different tables"
    if not all(row[EPOCH] == 1.0 and row[IS_DONE] == 1.0 for row in tables[0]):
        return "a range is missing"
    items = ranges_of(run.options)
    by_life: dict[float, list[int]] = {}
    for number, row in enumerate(tables[0]):
        by_life.setdefault(row[HOLDER], []).append(number)
    for path, lines in lives.items():
        mine = by_life.pop(next((line["life"] for line in lines if "life" in line), -1.0), [])
        seen = {item for line in lines for item in line.get("trained", ())}
        if missing := {item for number in mine for item in items[number]} - seen:
            return f"{path.name} has acknowledged {len(missing)} items without training on them"
        counted = sum(len(items[number]) for number in mine)
        known = max((line["acknowledged"] for line in lines if "acknowledged" in line), default=0)
        has_ended = any("rows" in line for line in lines)
        if known > counted or (has_ended and known != counted):
            return f"{path.name} knows of {known} acknowledged items, the table of {counted}"
    return f"ranges of unknown holders: {by_life}" if by_life else ""


def ranges_of(options: argparse.Namespace) -> list[list[int]]:
    """Return the items of each range; together all of them, each once."""
    from dpwa.dataset.range_table import DatasetRanges, shuffled

    ranges = DatasetRanges(options.items, options.range_size, shuffle=True, seed=0)
    order = shuffled(options.items, seed=0, epoch=0)
    items = [ranges.cut(order, number).tolist() for number in range(ranges.count)]
    assert sorted(item for each in items for item in each) == list(range(options.items))
    return items


def errors_of(run: Run) -> str:
    """Return what the processes have printed."""
    return "".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(run.folder.glob("*.err")))


def run_one(options: argparse.Namespace, seed: int, folder: Path) -> str:
    """Run once; return what is wrong, or nothing."""
    rng = random.Random(f"seen once {seed}")
    kinds = [signal.SIGKILL] * options.kills + [signal.SIGSTOP] * options.stops
    rng.shuffle(kinds)
    shares = sorted(rng.uniform(KILL_FROM, KILL_UNTIL) for _ in kinds)
    faults = [(int(s * options.items), kind) for s, kind in zip(shares, kinds, strict=True)]
    run = Run(options, rng, folder, faults)
    nodes = [
        {"name": name, "host": "127.0.0.1", "port": port}
        for name, port in zip(run.names, free_ports(options.nodes), strict=True)
    ]
    config = {"nodes": nodes, "log_level": "warning"}
    (folder / "dpwa.yaml").write_text(json.dumps(config))
    began = time.monotonic()
    try:
        for name in run.names:
            fork(run, name)
        while not go_on(run):
            if time.monotonic() - began > LIMIT_S:
                raise AssertionError(f"it hangs after {LIMIT_S:g} s:\n{errors_of(run)}")
            time.sleep(LOOK_EVERY_S)
        wrong = what_is_wrong(run)
        seconds, seen = time.monotonic() - began, trained(run)
        print(
            f"seed {seed}: {seconds:.0f} s, killed (or stopped) {' '.join(run.victims)}; "
            f"{seen - options.items} items seen again; {wrong or 'right'}",
            flush=True,
        )
        if options.verbose:
            print(errors_of(run), flush=True)
        return wrong
    finally:
        (folder / "over").touch()
        end_all(run)


def end_all(run: Run) -> None:
    """Wait for all processes to end; kill who does not."""
    deadline = time.monotonic() + 10.0
    for pid in run.pids.values():
        with suppress(ChildProcessError):
            while not os.waitpid(pid, os.WNOHANG)[0]:
                os.kill(pid, signal.SIGKILL if time.monotonic() > deadline else signal.SIGCONT)
                time.sleep(LOOK_EVERY_S)


def main() -> int:
    """Run as often as asked for; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (%(default)s)")
    parser.add_argument("--nodes", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="of each run (%(default)s)")
    parser.add_argument("--stops", type=int, default=0, help="of each run (%(default)s)")
    parser.add_argument("--items", type=int, default=16_384, help="(%(default)s)")
    parser.add_argument("--range-size", type=int, default=256, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="of each loader (%(default)s)")
    parser.add_argument("--step-s", type=float, default=0.15, help="of a batch (%(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all logs")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.runs):
        with tempfile.TemporaryDirectory() as folder:
            failed += bool(run_one(options, seed, Path(folder)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
