"""Measure the indices per second that `SharedSampler` hands out in all processes, without training.

Processes on this machine iterate over whole epochs, with ranges of several sizes. The time of an
epoch is the time of its slowest process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Barrier
from typing import Any

PATIENCE_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4], help="(%(default)s)")
    parser.add_argument("--range-size", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--ranges", type=int, default=512, help="ranges in an epoch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=7, help="epochs that count (%(default)s)")
    options = parser.parse_args()
    for nodes in options.nodes:
        for transport in ("auto", "tcp"):
            for range_size in options.range_size:
                size = options.ranges * range_size
                rates = [size / seconds for seconds in run(options, nodes, transport, range_size)]
                print(
                    f"{nodes} processes  {transport:5}ranges of {range_size:5}  "
                    f"{statistics.median(rates):9,.0f} indices/s "
                    f"({min(rates):,.0f} to {max(rates):,.0f})",
                    flush=True,
                )


def run(options: argparse.Namespace, count: int, transport: str, range_size: int) -> list[float]:
    """Run the epochs. Return the seconds of each epoch except the first epoch."""
    import torch

    from dpwa.launch.ports import free_ports

    torch.set_num_threads(1)  # before the fork, so that no child inherits a thread pool
    context: Any = multiprocessing.get_context("fork")
    begin, told = context.Barrier(count), context.Queue()
    nodes = [
        {"name": f"w{rank}", "host": "127.0.0.1", "port": port}
        for rank, port in enumerate(free_ports(count))
    ]
    config = {"nodes": nodes, "transport": transport, "log_level": "error"}
    processes = [
        context.Process(
            target=take_part, args=(rank, options, config, range_size, begin, told), daemon=True
        )
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    found = [told.get(timeout=PATIENCE_S) for _ in processes]
    for process in processes:
        process.join(PATIENCE_S)
    return [max(seconds) for seconds in zip(*found, strict=True)][1:]


def take_part(
    rank: int,
    options: argparse.Namespace,
    config: dict[str, Any],
    range_size: int,
    begin: Barrier,
    told: Any,
) -> None:
    from dpwa import DpwaConnection
    from dpwa.dataset import SharedSampler

    size = options.ranges * range_size
    found = []
    with (
        DpwaConnection(f"w{rank}", config) as connection,
        SharedSampler(size, connection, range_size=range_size) as sampler,
    ):
        for epoch in range(options.epochs + 1):
            sampler.set_epoch(epoch)
            begin.wait(PATIENCE_S)
            began = time.perf_counter()
            while not sampler.is_over():
                for drawn, _ in enumerate(sampler):
                    if drawn % range_size == range_size - 1:
                        sampler.acknowledge(range_size)
            found.append(time.perf_counter() - began)
        begin.wait(PATIENCE_S)  # no process leaves before all processes have finished
    told.put(found)


if __name__ == "__main__":
    main()
