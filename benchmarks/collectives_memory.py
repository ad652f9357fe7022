"""Memory of a process beyond the value that it all-reduces, in sizes of the value.

Of Pss, Rss and their peaks; see `memory.py` for what they are. The peak of Pss is sampled.
"""

from __future__ import annotations

import argparse
import json

from common import print_table, run, run_again
from process_memory import PeakOfPss, memory_of_process, reset_peak

from dpwa.bench.plan import LOCAL_HOST, BenchPlan, Rank, nbytes_of, ports_for
from dpwa.bench.suites.collectives import LINKS

WORDS = ("pss", "peak_pss", "rss", "peak_rss")


class MemoryPlan(BenchPlan):
    """What the processes are told."""

    link: str
    calls: int


def main() -> None:
    """Start the processes, or be one."""
    run(_compare, _all_reduce, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=100.0)
    parser.add_argument("--processes", nargs="+", type=int, default=(2, 4))
    parser.add_argument("--transports", nargs="+", choices=tuple(LINKS), default=tuple(LINKS))
    parser.add_argument("--calls", type=int, default=3)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    result = []
    for transport in options.transports:
        for count in options.processes:
            plan = _plan(options, transport, count)
            found = [json.loads(line) for line in run_again(plan)]
            most = {word: max(process[word] for process in found) / plan.nbytes for word in WORDS}
            result.append({"transport": transport, "processes": count, **most})
    print_table(list(result[0]), [list(row.values()) for row in result])
    print(json.dumps(result))


def _plan(options: argparse.Namespace, transport: str, processes: int) -> MemoryPlan:
    return MemoryPlan(
        nbytes=nbytes_of(options.size_mb),
        hosts=(LOCAL_HOST,) * processes,
        ports=ports_for([transport], processes),
        link=transport,
        calls=options.calls,
    )


def _all_reduce(_: argparse.Namespace) -> None:
    from dpwa.bench.model import FlatModel
    from dpwa.bench.session import GlooGroup, leave_when_asked
    from dpwa.connection import DpwaConnection

    leave_when_asked()
    rank = Rank.from_environment()
    plan = rank.plan(MemoryPlan)
    config = plan.config(plan.link, LINKS[plan.link])
    with GlooGroup(rank) as group:
        flat = FlatModel(plan.nbytes, 1, seed=rank.index).flat  # random: every page is touched
        group.barrier()
        reset_peak()
        before = memory_of_process()
        with DpwaConnection(rank.name, config) as connection, PeakOfPss() as peak:
            for _ in range(plan.calls):
                connection.all_reduce(flat, "mean")
            group.barrier()
            after = memory_of_process()
            group.barrier()
    beyond = {word: after[word] - before[word] for word in after}
    print(json.dumps({**beyond, "peak_pss": peak.nbytes - before["pss"]}))


if __name__ == "__main__":
    main()
