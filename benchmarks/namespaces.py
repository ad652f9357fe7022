"""Benchmarks between two network namespaces that are joined by a link.

Linux only, as root; needs `ip` and `tc`. Everything that was made is removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from dpwa.bench.benchmark import Benchmark, run_benchmark
from dpwa.bench.plan import Rank
from dpwa.bench.result import BenchResult
from dpwa.testing.namespaces import INTERFACE, Host

_CLONE_NEWNET = 0x4000_0000  # linux/sched.h

AnyResult = TypeVar("AnyResult", bound=BenchResult)


def run_between(hosts: Sequence[Host], benchmark: Benchmark[AnyResult]) -> AnyResult:
    """Run a benchmark between the addresses of hosts; this script is started as its processes.

    They must call `take_part` with the value of the option `--namespaces`.
    """
    places = [f"{host.address}={host.name}" for host in hosts]
    return run_benchmark(benchmark, command=[sys.executable, sys.argv[0], "--namespaces", *places])


def take_part(places: Sequence[str]) -> None:
    """Move to the namespace of this process's host, before any thread is started, and take part."""
    rank = Rank.from_environment()
    names = dict(place.split("=") for place in places)
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path("/run/netns", names[rank.benchmark_plan().hosts[rank.index]])
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    from dpwa.bench.worker import main

    main()
