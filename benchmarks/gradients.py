"""Compare the costs of averaging gradients with `algorithm: together` and with DDP over Gloo.

Each process has one model for each method. The methods alternate, and all processes use the same
method at the same time. The result is the time that `together` adds to a step, divided by the time
that DDP adds. With `--mbit`, each process runs in its own network namespace, with a link of this
rate. This needs Linux, root, `ip` and `tc`. With `--mbit`, also set `--transport tcp`. Otherwise,
the nodes use shared memory, because they run on the same machine.
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
    "alone": "no averages",
    "ddp": "DistributedDataParallel, Gloo",
    "together": "algorithm: together",
}
LAYERS = 10  # of equal size, so that DDP can average a bucket of 25 MB during the backward pass
CALLS = 10  # number of steps in a sample, for models with short steps
TINY_TENSORS, TINY_VALUES = 8000, 16
MODELS = ("layers", "gpt", "mlp", "tensors")


def main() -> None:
    run(_compare, _train, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="layers",
        help="10 linear layers, the GPT of benchmarks/language, an MLP of 10,000 parameters, or "
        "8,000 tensors of 16 values",
    )
    parser.add_argument(
        "--size-mb", type=float, default=100.0, help="size of all gradients of `layers`, 10^6 bytes"
    )
    parser.add_argument("--processes", type=at_least(2), default=2)
    parser.add_argument("--batch", type=at_least(1), default=1, help="samples in a step")
    parser.add_argument(
        "--device-ms",
        type=float,
        default=0.0,
        help="simulated time of the backward pass on a device, without a core of this machine",
    )
    parser.add_argument("--mbit", type=at_least(1), help="rate of the link, 10^6 bits per second")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--repetitions", type=at_least(1), default=15)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    figures = _figures(options)
    medians = {name: figure["median_ms"] for name, figure in figures.items()}
    added = {name: median_ms - medians["alone"] for name, median_ms in medians.items()}
    rates = {name: medians["ddp"] / median_ms for name, median_ms in medians.items()}
    rows = [
        [name, TITLES[name], medians[name], added[name] / added["ddp"], rates[name]]
        for name in TITLES
    ]
    print_table(["step", "", "ms", "added / DDP", "steps/s / DDP"], rows, texts=2)
    ratio = added["together"] / added["ddp"]
    print(json.dumps({"medians_ms": medians, "ratio": ratio, "rate": rates["together"]}))


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
        net(*inputs).square().mean().backward()
        optimizer.step()

    def averaged() -> None:
        gossip.update_send()
        step_of(*own["together"])
        gossip.update_wait()

    def look() -> None:
        pace = gossip.connection.node.report()["pace"]["in_pace"]
        if len(pace) < session.count and len(seen) == session.count:
            raise BenchmarkError(f"{session.name} is in sync with {len(pace)} of {session.count}")
        seen.update(pace)

    class Device(torch.autograd.Function):
        """A function that passes values and gradients on, and waits in the backward pass."""

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

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tensors = (torch.ones(TINY_VALUES) for _ in range(TINY_TENSORS))
            self.tensors = nn.ParameterList(map(nn.Parameter, tensors))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.stack(list(self.tensors)).mul(inputs)

    def made() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Return a model, and inputs that differ between processes."""
        from language.model import BATCH, CONTEXT, GPT, VOCABULARY

        torch.manual_seed(0)
        own = torch.Generator().manual_seed(session.index)
        if options.model == "gpt":
            tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=own)
            return GPT(), (tokens[:, :-1], tokens[:, 1:])
        if options.model == "mlp":
            mlp = nn.Sequential(nn.Linear(64, 132), nn.ReLU(), nn.Linear(132, 10))
            return mlp, (torch.randn(32, 64, generator=own),)
        if options.model == "tensors":
            return Tiny(), (torch.randn(TINY_VALUES, generator=own),)
        width = round((session.plan.nbytes / BYTES_PER_VALUE / LAYERS) ** 0.5)
        layers = (Layer(width, width, bias=False) for _ in range(LAYERS))
        return nn.Sequential(*layers), (torch.randn(options.batch, width, generator=own),)

    with Session() as session, ExitStack() as stack:
        seen: set[str] = set()
        own = {}
        for name in TITLES:
            net, inputs = made()
            optimizer = torch.optim.SGD(net.parameters(), 1e-6)
            own[name] = (
                nn.parallel.DistributedDataParallel(net) if name == "ddp" else net,
                optimizer,
            )
        settings = {"merge": "delta", "algorithm": "together", "transport": options.transport}
        config = session.plan.config("together", **settings)
        gossip = dpwa.connect(*own["together"], config=config, name=session.name)
        stack.enter_context(gossip)
        calls = 1 if options.model == "layers" else CALLS
        measures: dict[str, Measure] = {
            "alone": timed("alone", lambda: step_of(*own["alone"]), calls=calls),
            "ddp": timed("ddp", lambda: step_of(*own["ddp"]), calls=calls),
            "together": timed("together", averaged, calls=calls, settle=look),
        }
        session.repeat(measures, options.repetitions)


if __name__ == "__main__":
    main()
