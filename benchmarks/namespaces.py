"""Two network namespaces that are joined by a link, and processes that live in them.

Linux only, as root; needs `ip` and `tc`. Everything that was made is removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dpwa.bench.benchmark import Benchmark, run_benchmark
from dpwa.bench.plan import Seat
from dpwa.bench.result import Result
from dpwa.errors import UserError

ADDRESSES = ("10.77.0.1", "10.77.0.2")

_INTERFACE = "dpwa0"
_CLONE_NEWNET = 0x4000_0000  # linux/sched.h

AnyResult = TypeVar("AnyResult", bound=Result)


@contextmanager
def joined_namespaces(limit: str | None = None) -> Iterator[tuple[str, str]]:
    """Join two new namespaces that have the `ADDRESSES`; yield their names.

    Args:
        limit: of each direction, as `tc qdisc` understands it.

    Raises:
        UserError: this is not root, or a tool is missing.
    """
    _require_root()
    names = f"dpwa-{os.getpid()}-a", f"dpwa-{os.getpid()}-b"
    try:
        for name in names:
            _do(f"ip netns add {name}")
        ends = [f"{_INTERFACE} netns {name}" for name in names]
        _do(f"ip link add {ends[0]} type veth peer name {ends[1]}")
        for name, address in zip(names, ADDRESSES, strict=True):
            _do(f"ip -n {name} addr add {address}/24 dev {_INTERFACE}")
            _do(f"ip -n {name} link set lo up")
            _do(f"ip -n {name} link set {_INTERFACE} up")
            if limit is not None:
                _do(f"tc -n {name} qdisc add dev {_INTERFACE} root {limit}")
        yield names
    finally:
        for name in names:  # the link goes with them
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run_between(namespaces: Sequence[str], benchmark: Benchmark[AnyResult]) -> AnyResult:
    """Run a benchmark whose hosts are the `ADDRESSES`; this script is started as its processes.

    They must call `take_part` with the value of the option `--namespaces`.
    """
    return run_benchmark(
        benchmark, command=[sys.executable, sys.argv[0], "--namespaces", *namespaces]
    )


def take_part(namespaces: Sequence[str]) -> None:
    """Move to the namespace of this process's host, before any thread is started, and take part."""
    seat = Seat.from_environment()
    host = seat.benchmark_plan().hosts[seat.rank]
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path("/run/netns", namespaces[ADDRESSES.index(host)])
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.environ["GLOO_SOCKET_IFNAME"] = _INTERFACE
    from dpwa.bench.worker import main

    main()


def _require_root() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise UserError(f"this needs {' and '.join(missing)} (package iproute2)")
    if os.geteuid() != 0:
        raise UserError("only root may make network namespaces")


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command}: {done.stderr.strip()}")
