"""Compare a round of models that are sharded over two ranks with a round of whole models."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import Any

from common import (
    TRANSPORTS,
    Measure,
    Plan,
    Session,
    figures_of,
    plan_of,
    print_table,
    run,
    run_again,
)

KINDS = ("whole", "sharded")
MEMBERS, RANKS = 2, 2


def main() -> None:
    run(_compare, _gossip, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=25.0, help="size of the model, in 10^6 bytes")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=int, default=25)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    plan = plan_of(round(options.mb * 250_000) * 4, KINDS, MEMBERS * RANKS)
    figures = figures_of(run_again(plan))
    medians = {kind: figures[kind]["median_ms"] for kind in KINDS}
    ratio = medians["sharded"] / medians["whole"]
    rows = [[f"{options.mb:g} MB", medians["whole"], medians["sharded"], ratio]]
    print_table(["", "whole, ms", "sharded, ms", "ratio"], rows)
    print(json.dumps({"medians_ms": medians, "ratio": ratio}))


def _gossip(options: argparse.Namespace) -> None:
    from measures import DpwaPyTorchAdapter, FlatModel, gossip_round, meet
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with Session() as session, ExitStack() as stack:
        plan = session.plan
        mesh = init_device_mesh("cpu", (MEMBERS, RANKS), mesh_dim_names=("member", "rank"))
        made = {"whole": Measure(dict)}  # a rank without a node takes no time
        if session.index < MEMBERS:
            module = FlatModel(plan.nbytes, 8, seed=session.index).module
            config = _config(plan, "whole", options.transport)
            adapter = DpwaPyTorchAdapter(module, f"m{session.index}", config)
            meet(stack.enter_context(adapter))
            made["whole"] = gossip_round("whole", adapter)
        session.barrier()
        member = session.index // RANKS
        module = FlatModel(plan.nbytes, 8, seed=member).module
        fully_shard(module, mesh=mesh["rank"])
        config = _config(plan, "sharded", options.transport)
        adapter = DpwaPyTorchAdapter(module, f"m{member}", config)
        meet(stack.enter_context(adapter))
        made["sharded"] = gossip_round("sharded", adapter)
        session.barrier()
        session.repeat(made, options.repetitions)


def _config(plan: Plan, kind: str, transport: str) -> dict[str, Any]:
    mapping = plan.config(kind, transport=transport).to_mapping()
    apart = 1 if kind == "whole" else RANKS
    nodes = mapping["nodes"][: MEMBERS * apart : apart]
    return {**mapping, "nodes": [{**node, "name": f"m{i}"} for i, node in enumerate(nodes)]}


if __name__ == "__main__":
    main()
