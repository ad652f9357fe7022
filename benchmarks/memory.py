"""Memory of a node beyond its model, in sizes of the model, after rounds with one peer.

Pss counts a page that several processes map in equal parts for each; Rss counts it fully for each.
The peak is that of Rss.
"""

from __future__ import annotations

import argparse
import json

from common import TRANSPORTS, print_table, run, run_again
from process_memory import memory_of_process, reset_peak

from dpwa.bench.plan import LOCAL_HOST, BenchPlan, Rank, nbytes_of, ports_for
from dpwa.bench.suite import LinkSettings

LINK = "memory"


class MemoryPlan(BenchPlan):
    """What the nodes are told."""

    transport: str
    slots: int
    rounds: int


def main() -> None:
    """Start the nodes, or be one."""
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
            plan = _plan(options, transport, slots)
            nodes = [json.loads(line) for line in run_again(plan)]
            most = {key: max(node[key] for node in nodes) / plan.nbytes for key in nodes[0]}
            result.append({"transport": transport, "slots": slots, **most})
    headings = list(result[0])
    rows = [[row[key] for key in headings] for row in result]
    print_table(headings, rows)
    print(json.dumps(result))


def _plan(options: argparse.Namespace, transport: str, slots: int) -> MemoryPlan:
    hosts = (LOCAL_HOST, LOCAL_HOST)
    return MemoryPlan(
        nbytes=nbytes_of(options.size_mb),
        hosts=hosts,
        ports=ports_for([LINK], len(hosts)),
        transport=transport,
        slots=slots,
        rounds=options.rounds,
    )


def _gossip(_: argparse.Namespace) -> None:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.bench.measures.gossip import meet
    from dpwa.bench.model import FlatModel
    from dpwa.bench.session import GlooGroup, leave_when_asked

    leave_when_asked()
    rank = Rank.from_environment()
    plan = rank.plan(MemoryPlan)
    with GlooGroup(rank) as group:
        model = FlatModel(plan.nbytes, 1, seed=rank.index)  # random: every page is touched
        group.barrier()
        reset_peak()
        before = memory_of_process()
        config = plan.config(LINK, LinkSettings(plan.transport, slots=plan.slots))
        with DpwaPyTorchAdapter(model.module, rank.name, config) as gossip:
            meet(gossip)
            for _ in range(plan.rounds):
                gossip.update_send()
                gossip.update_wait()
            group.barrier()
            after = memory_of_process()
            group.barrier()
    print(json.dumps({key: after[key] - before[key] for key in after}))


if __name__ == "__main__":
    main()
