"""What averaging the gradients of every step costs: `algorithm: together` beside DDP over Gloo.

Each process has a model of its own for each way; they take turns, all processes in the same way at
the same time. A ratio is what a way adds to the step, relative to what DDP adds. With `--mbit`, the
processes are in network namespaces of their own, with a link of such a rate between them: on Linux
only, as root; needs `ip` and `tc`. Give `--transport tcp`, too: memory is shared between these.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from typing import Any

from common import (
    BYTES_PER_VALUE,
    TRANSPORTS,
    BenchmarkError,
    Measure,
    Session,
    at_least,
    figures_of,
    nbytes_of,
    plan_of,
    print_table,
    run,
    run_again,
    timed,
)
from namespaces import placed

from dpwa.testing.namespaces import Namespaces

TITLES = {
    "alone": "nobody averages",
    "ddp": "DistributedDataParallel, Gloo",
    "together": "algorithm: together",
}
LAYERS = 10  # of equal size: DDP averages buckets of 25 MB while others are computed


def main() -> None:
    run(_compare, _train, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=100.0, help="of all gradients, in 10^6")
    parser.add_argument("--processes", type=at_least(2), default=2)
    parser.add_argument("--batch", type=at_least(1), default=1, help="samples of a step")
    parser.add_argument(
        "--device-ms",
        type=float,
        default=0.0,
        help="what a device would take for the backward pass, without using this machine's cores",
    )
    parser.add_argument("--mbit", type=at_least(1), help="of the link, in 10^6 bits per second")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=at_least(1), default=15)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    figures = _figures(options)
    medians = {name: figure["median_ms"] for name, figure in figures.items()}
    added = {name: median_ms - medians["alone"] for name, median_ms in medians.items()}
    rows = [[name, TITLES[name], medians[name], added[name] / added["ddp"]] for name in TITLES]
    print_table(["step", "", "ms", "added, to DDP's"], rows, texts=2)
    print(json.dumps({"medians_ms": medians, "ratio": added["together"] / added["ddp"]}))


def _figures(options: argparse.Namespace) -> dict[str, Any]:
    nbytes, links, count = nbytes_of(options.size_mb), ("together",), options.processes
    if options.mbit is None:
        return figures_of(run_again(plan_of(nbytes, links, count)))
    with Namespaces(count, rate_mbit=options.mbit) as hosts:
        plan = plan_of(nbytes, links, tuple(host.address for host in hosts))
        return figures_of(run_again(placed(plan, hosts)))


def _train(options: argparse.Namespace) -> None:
    import torch
    from torch import nn

    import dpwa

    def step_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    def averaged() -> None:
        gossip.update_send()
        step_of(*own["together"])
        gossip.update_wait()

    def look() -> None:
        pace = gossip.connection.node.report()["pace"]["in_pace"]
        if len(pace) < session.count and len(seen) == session.count:
            raise BenchmarkError(f"{session.name} keeps pace with {len(pace)} of {session.count}")
        seen.update(pace)

    class Device(torch.autograd.Function):
        """Takes the time of a layer's backward pass before that layer's gradients are made."""

        @staticmethod
        def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
            return values.view_as(values)

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(options.device_ms / LAYERS / 1000)
            return gradient

    class Layer(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return Device.apply(super().forward(inputs))  # type: ignore[no-any-return]

    with Session() as session, ExitStack() as stack:
        width = round((session.plan.nbytes / BYTES_PER_VALUE / LAYERS) ** 0.5)
        inputs = torch.randn(
            options.batch, width, generator=torch.Generator().manual_seed(session.index)
        )
        seen: set[str] = set()
        own = {}
        for name in TITLES:
            torch.manual_seed(0)
            layers = [Layer(width, width, bias=False) for _ in range(LAYERS)]
            net: nn.Module = nn.Sequential(*layers)
            optimizer = torch.optim.SGD(net.parameters(), 1e-6)
            own[name] = (
                nn.parallel.DistributedDataParallel(net) if name == "ddp" else net,
                optimizer,
            )
        settings = {"merge": "delta", "algorithm": "together", "transport": options.transport}
        config = session.plan.config("together", **settings)
        gossip = dpwa.connect(*own["together"], config=config, name=session.name)
        stack.enter_context(gossip)
        measures: dict[str, Measure] = {
            "alone": timed("alone", lambda: step_of(*own["alone"])),
            "ddp": timed("ddp", lambda: step_of(*own["ddp"])),
            "together": timed("together", averaged, settle=look),
        }
        session.repeat(measures, options.repetitions)


if __name__ == "__main__":
    main()
