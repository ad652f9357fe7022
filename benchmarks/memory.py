"""Measure the memory of a node without its model, divided by the size of the model.

The node does some rounds with one peer. If several processes map a page, Pss counts an equal part
of the page for each process. Rss counts the whole page for each. The peak is the peak of Rss.
"""

from __future__ import annotations

import argparse
import json

from common import TRANSPORTS, Session, nbytes_of, plan_of, print_table, run, run_again, tell
from process_memory import memory_of_process, reset_peak

LINK = "memory"


def main() -> None:
    run(_compare, _gossip, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=("shm", "tcp"))
    parser.add_argument("--slots", nargs="+", type=int, default=(3, 2))
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    result = []
    for transport in options.transports:
        for slots in options.slots:
            told = {"rounds": options.rounds, "transport": transport, "slots": slots}
            plan = plan_of(nbytes_of(options.size_mb), [LINK], **told)
            nodes = run_again(plan)
            most = {key: max(node[key] for node in nodes) / plan.nbytes for key in nodes[0]}
            result.append({"transport": transport, "slots": slots, **most})
    headings = list(result[0])
    rows = [[row[key] for key in headings] for row in result]
    print_table(headings, rows)
    print(json.dumps(result))


def _gossip(_: argparse.Namespace) -> None:
    from measures import DpwaPyTorchAdapter, FlatModel, meet

    with Session() as session:
        plan = session.plan
        rounds, settings = plan.options.pop("rounds"), plan.options
        model = FlatModel(plan.nbytes, 1, seed=session.index)  # random values use all pages
        session.barrier()
        reset_peak()
        before = memory_of_process()
        config = plan.config(LINK, **settings)
        with DpwaPyTorchAdapter(model.module, session.name, config) as gossip:
            meet(gossip)
            for _ in range(rounds):
                gossip.update_send()
                gossip.update_wait()
            session.barrier()
            after = memory_of_process()
            session.barrier()
    tell({key: after[key] - before[key] for key in after})


if __name__ == "__main__":
    main()
