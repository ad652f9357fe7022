"""Measure the memory of a process in an all-reduce, divided by the size of the value.

The memory of the value itself does not count. The figures are Pss, Rss and their peaks, which
`memory.py` explains. The peak of Pss is the maximum of samples.
"""

from __future__ import annotations

import argparse
import json

from common import Session, nbytes_of, plan_of, print_table, run, run_again, tell
from process_memory import PeakOfPss, memory_of_process, reset_peak

LINKS = ("shm", "tcp")
WORDS = ("pss", "peak_pss", "rss", "peak_rss")


def main() -> None:
    run(_compare, _all_reduce, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=100.0)
    parser.add_argument("--processes", nargs="+", type=int, default=(2, 4))
    parser.add_argument("--transports", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--calls", type=int, default=3)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    result = []
    for transport in options.transports:
        for count in options.processes:
            plan = plan_of(nbytes_of(options.size_mb), [transport], count, calls=options.calls)
            found = run_again(plan)
            most = {word: max(process[word] for process in found) / plan.nbytes for word in WORDS}
            result.append({"transport": transport, "processes": count, **most})
    print_table(list(result[0]), [list(row.values()) for row in result])
    print(json.dumps(result))


def _all_reduce(_: argparse.Namespace) -> None:
    from measures import DpwaConnection, FlatModel

    with Session() as session:
        plan = session.plan
        (link,) = plan.ports
        config = plan.config(link, transport=link)
        flat = FlatModel(plan.nbytes, 1, seed=session.index).flat  # random values use all pages
        session.barrier()
        reset_peak()
        before = memory_of_process()
        with DpwaConnection(session.name, config) as connection, PeakOfPss() as peak:
            for _ in range(plan.options["calls"]):
                connection.all_reduce(flat, "mean")
            session.barrier()
            after = memory_of_process()
            session.barrier()
    beyond = {word: after[word] - before[word] for word in after}
    tell({**beyond, "peak_pss": peak.nbytes - before["pss"]})


if __name__ == "__main__":
    main()
