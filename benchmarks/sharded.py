"""A round of a model that is sharded over two ranks a member, against one of whole models."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import Any

from common import TRANSPORTS, print_table, run, run_again

from dpwa.bench.plan import LOCAL_HOST, BenchPlan, Rank, ports_for
from dpwa.bench.records import Sample, SessionReport, parse_record
from dpwa.bench.result import figures_of
from dpwa.bench.suite import LinkSettings

KINDS = ("whole", "sharded")
MEMBERS, RANKS = 2, 2


def main() -> None:
    """Start the processes, or be one."""
    run(_compare, _gossip, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=25.0, help="size of the model, in 10^6 bytes")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=int, default=25)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    hosts = (LOCAL_HOST,) * (MEMBERS * RANKS)
    nbytes = round(options.mb * 250_000) * 4
    plan = BenchPlan(nbytes=nbytes, hosts=hosts, ports=ports_for(KINDS, len(hosts)))
    records = [parse_record(line) for line in run_again(plan)]
    figures = figures_of([record for record in records if isinstance(record, SessionReport)])
    medians = {kind: figures[kind].median_ms for kind in KINDS}
    ratio = medians["sharded"] / medians["whole"]
    rows = [[f"{options.mb:g} MB", medians["whole"], medians["sharded"], ratio]]
    print_table(["", "whole, ms", "sharded, ms", "ratio"], rows)
    print(json.dumps({"medians_ms": medians, "ratio": ratio}))


def _gossip(options: argparse.Namespace) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.bench.measures.gossip import Round, meet
    from dpwa.bench.model import FlatModel
    from dpwa.bench.session import GlooGroup, leave_when_asked, repeat, report

    leave_when_asked()
    with GlooGroup(Rank.from_environment()) as group, ExitStack() as stack:
        rank = group.rank
        plan = rank.plan(BenchPlan)
        mesh = init_device_mesh("cpu", (MEMBERS, RANKS), mesh_dim_names=("member", "rank"))
        measures: dict[str, Any] = {"whole": Nothing()}
        if rank.index < MEMBERS:
            module = FlatModel(plan.nbytes, 8, seed=rank.index).module
            config = _config(plan, "whole", options.transport)
            adapter = DpwaPyTorchAdapter(module, f"m{rank.index}", config)
            meet(stack.enter_context(adapter))
            measures["whole"] = Round("whole", adapter)
        group.barrier()
        member = rank.index // RANKS
        module = FlatModel(plan.nbytes, 8, seed=member).module
        fully_shard(module, mesh=mesh["rank"])
        config = _config(plan, "sharded", options.transport)
        adapter = DpwaPyTorchAdapter(module, f"m{member}", config)
        meet(stack.enter_context(adapter))
        measures["sharded"] = Round("sharded", adapter)
        group.barrier()
        report(repeat(group, measures, options.repetitions))
        group.barrier()


class Nothing:
    """What a rank does that has no node of its own."""

    def prepare(self) -> None:
        """Nothing."""

    def run(self) -> Sample:
        """Take no time."""
        return {}


def _config(plan: BenchPlan, kind: str, transport: str) -> dict[str, Any]:
    mapping = plan.config(kind, LinkSettings(transport)).to_mapping()
    apart = 1 if kind == "whole" else RANKS
    nodes = mapping["nodes"][: MEMBERS * apart : apart]
    return {**mapping, "nodes": [{**node, "name": f"m{i}"} for i, node in enumerate(nodes)]}


if __name__ == "__main__":
    main()
