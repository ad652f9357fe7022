"""What many small tensors cost against one large one of the same size, in one run."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack

from common import TRANSPORTS, print_table, run, run_again

from dpwa.bench.plan import LOCAL_HOST, BenchPlan, Rank, ports_for
from dpwa.bench.records import SessionReport, parse_record
from dpwa.bench.result import figures_of
from dpwa.bench.suite import LinkSettings

MODELS = ("many", "one")
KINDS = ("overlapped", "round")


def main() -> None:
    """Start the nodes, or be one."""
    run(_compare, _gossip, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--tensor-kb", type=float, default=10.0, help="size of each, in 1000 bytes")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=int, default=15)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    hosts = (LOCAL_HOST, LOCAL_HOST)
    nbytes = round(options.tensors * options.tensor_kb * 250) * 4
    plan = BenchPlan(nbytes=nbytes, hosts=hosts, ports=ports_for(MODELS, len(hosts)))
    records = [parse_record(line) for line in run_again(plan)]
    figures = figures_of([record for record in records if isinstance(record, SessionReport)])
    medians = {name: figure.median_ms for name, figure in figures.items()}
    ratios = {kind: medians[f"many_{kind}"] / medians[f"one_{kind}"] for kind in KINDS}
    rows = [[k, medians[f"many_{k}"], medians[f"one_{k}"], ratios[k]] for k in KINDS]
    print_table(["", f"{options.tensors} tensors, ms", "1 tensor, ms", "ratio"], rows)
    print(json.dumps({"medians_ms": medians, "ratios": ratios}))


def _gossip(options: argparse.Namespace) -> None:
    from dpwa.bench.session import GlooGroup, leave_when_asked, repeat, report

    leave_when_asked()
    with GlooGroup(Rank.from_environment()) as group, ExitStack() as stack:
        measures = {}
        for name, tensors in zip(MODELS, (options.tensors, 1), strict=True):
            measures |= _measures(name, tensors, options.transport, group.rank, stack)
            group.barrier()
        outcome = repeat(group, measures, options.repetitions)
        report(outcome)
        group.barrier()


def _measures(name: str, tensors: int, transport: str, rank: Rank, stack: ExitStack) -> dict:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.bench.measures.gossip import Round, meet, pause_s
    from dpwa.bench.model import FlatModel

    plan = rank.plan(BenchPlan)
    module = FlatModel(plan.nbytes, tensors, seed=rank.index).module
    adapter = DpwaPyTorchAdapter(module, rank.name, plan.config(name, LinkSettings(transport)))
    meet(stack.enter_context(adapter))
    pauses_s = {"overlapped": pause_s(plan.nbytes), "round": 0.0}
    return {f"{name}_{kind}": Round(f"{name}_{kind}", adapter, pauses_s[kind]) for kind in KINDS}


if __name__ == "__main__":
    main()
