"""Compare a round of many small tensors with a round of one tensor of the same total size."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack

from common import (
    TRANSPORTS,
    Measure,
    Session,
    figures_of,
    plan_of,
    print_table,
    run,
    run_again,
)

MODELS = ("many", "one")
KINDS = ("overlapped", "round")


def main() -> None:
    run(_compare, _gossip, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--tensor-kb", type=float, default=10.0, help="size in 1000 bytes")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=int, default=15)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    nbytes = round(options.tensors * options.tensor_kb * 250) * 4
    figures = figures_of(run_again(plan_of(nbytes, MODELS)))
    medians = {name: figure["median_ms"] for name, figure in figures.items()}
    ratios = {kind: medians[f"many_{kind}"] / medians[f"one_{kind}"] for kind in KINDS}
    rows = [[k, medians[f"many_{k}"], medians[f"one_{k}"], ratios[k]] for k in KINDS]
    print_table(["", f"{options.tensors} tensors, ms", "1 tensor, ms", "ratio"], rows)
    print(json.dumps({"medians_ms": medians, "ratios": ratios}))


def _gossip(options: argparse.Namespace) -> None:
    with Session() as session, ExitStack() as stack:
        made: dict[str, Measure] = {}
        for name, tensors in zip(MODELS, (options.tensors, 1), strict=True):
            made |= _measures(name, tensors, options.transport, session, stack)
            session.barrier()
        session.repeat(made, options.repetitions)


def _measures(
    name: str, tensors: int, transport: str, session: Session, stack: ExitStack
) -> dict[str, Measure]:
    from measures import DpwaPyTorchAdapter, FlatModel, gossip_round, meet, pause_s

    plan = session.plan
    module = FlatModel(plan.nbytes, tensors, seed=session.index).module
    adapter = DpwaPyTorchAdapter(module, session.name, plan.config(name, transport=transport))
    meet(stack.enter_context(adapter))
    pauses_s = {"overlapped": pause_s(plan.nbytes), "round": 0.0}
    return {f"{name}_{k}": gossip_round(f"{name}_{k}", adapter, pauses_s[k]) for k in KINDS}


if __name__ == "__main__":
    main()
