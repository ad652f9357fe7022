"""Campaigns of whole nodes in virtual time: a thousand different situations in minutes.

Usage: virtual.py [-v] [-j 2] [--seeds 0:1000] NAME    (NAME as below, or `all`)

Each seed is one situation: how many nodes, which links, how long steps take, who is killed when.
churn: every four seconds one member or two are killed; their processes are started again, and
    connect up to 10 s later, with one address of a node that was a member then.
tables: workers that start up to 10 s apart make the same tables and add to them; in a third of the
    seeds one of them is killed, in another third one is cut off for up to 8 s; in most seeds one
    or two of the others stall for up to 4 s.
partition: a cluster is cut in two parts for a while.
members: members are killed, leave, stall, are cut off and start again, maybe elsewhere or with a
    clock that was set back, in any order.
leader: the leader of lsgd, or of `interpolation: leader`, dies.
collectives: nodes add up values all the time; they are killed and come back, or are cut off.
paced: nodes average values in rounds of those who keep pace; some are killed, cut off, or are up to
    40 times slower for a while.
buckets: as paced, in three rounds a step.
waits: as paced, with collectives in between; all nodes live, some are late or leave out a step.

Prints what went wrong with which seed, and the command that plays it again with a log of its nodes;
exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from cases.churn import Churn
from cases.collectives import CollectiveCallers
from cases.leader import Leader
from cases.members import AnyMembers
from cases.paced import PacedCallers
from cases.partition import Partition
from cases.tables import TableWorkers
from cases.waits import MixedCallers

CASES = {
    "churn": Churn,
    "tables": TableWorkers,
    "partition": Partition,
    "leader": Leader,
    "members": AnyMembers,
    "collectives": CollectiveCallers,
    "paced": PacedCallers,
    "buckets": partial(PacedCallers, rounds=3),
    "waits": MixedCallers,
}
MAX_SEEDS_AT_ONCE = 10  # by one process: then it tells


@dataclass(frozen=True)
class Played:
    """What came of one seed.

    Attributes:
        seed: as given.
        broken: promises, in words.
        cpu_s: seconds of a core that it took.
        virtual_s: seconds that it took for the nodes.
    """

    seed: int
    broken: list[str]
    cpu_s: float
    virtual_s: float


@contextmanager
def silence() -> Iterator[None]:
    """Keep back what nodes log: that some give up is what happens here."""
    logger = logging.getLogger("dpwa")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def play(name: str, seed: int) -> Played:
    """Play one seed of a campaign."""
    began = time.process_time()
    case = CASES[name](seed)
    try:
        with silence():
            broken = case.play()
    except Exception:  # noqa: BLE001
        broken = [traceback.format_exc()]
    return Played(seed, broken, time.process_time() - began, case.network.clock.now())


def played(name: str, seeds: range, processes: int) -> Iterator[Played]:
    """Play many seeds, in several processes, in order."""
    if processes == 1:
        yield from map(partial(play, name), seeds)
        return
    share = max(1, min(MAX_SEEDS_AT_ONCE, len(seeds) // processes))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(play, name), seeds, share)


def campaign(name: str, seeds: range, processes: int) -> list[Played]:
    """Play a campaign, and print what comes of it; return what went wrong."""
    began, failed, cpu_s, virtual_s = time.monotonic(), [], 0.0, 0.0
    for one in played(name, seeds, processes):
        cpu_s += one.cpu_s
        virtual_s += one.virtual_s
        if one.broken:
            failed.append(one)
            print(f"{name}, seed {one.seed}: " + "\n    ".join(one.broken), flush=True)
            print(f"    again: python tests/campaigns/virtual.py {name} --seeds {one.seed} -v")
    count = len(seeds)
    print(
        f"{name}: {count - len(failed)} of {count} seeds are right, "
        f"{cpu_s / count:.2f} s of a core and {virtual_s / count:.0f} virtual seconds a seed, "
        f"in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return failed


def tell_all(name: str, seed: int) -> Played:
    """Play one seed, and print what its nodes log, with the virtual time."""
    case = CASES[name](seed)

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print(f"{case.network.clock.now():9.3f} {record.levelname:8} {record.getMessage()}")

    logger = logging.getLogger("dpwa")
    logger.addHandler(Printed(logging.DEBUG))
    logger.propagate = False
    logger.setLevel(logging.INFO)
    broken = case.play()
    for time_s, text in case.events:
        print(f"{time_s:9.3f} EVENT    {text}")
    return Played(seed, broken, 0.0, case.network.clock.now())


def seeds_of(text: str) -> range:
    """Read `7`, or `0:1000`."""
    first, colon, end = text.partition(":")
    return range(int(first), int(end) if colon else int(first) + 1)


def main() -> int:
    """Play what is asked for; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*CASES, "all"])
    parser.add_argument("--seeds", type=seeds_of, default=range(1000), help="7, or 0:1000")
    parser.add_argument("-j", "--processes", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="what the nodes log")
    options = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:  # the order of sets, and so that of messages, goes by it
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    names = list(CASES) if options.name == "all" else [options.name]
    if options.verbose:
        found = [tell_all(name, seed) for name in names for seed in options.seeds]
        failed = [one for one in found if one.broken]
        for one in failed:
            print(f"seed {one.seed}: " + "\n    ".join(one.broken))
    else:
        failed = [one for name in names for one in campaign(name, options.seeds, options.processes)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
