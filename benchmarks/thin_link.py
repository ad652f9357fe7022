"""Time per round over a thin link, by codec: two network namespaces, and a limit between them.

Linux only, as root; needs `ip` and `tc`. Everything it has made is removed at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import fail, is_node, print_table

from dpwa.bench.catalogue import CODECS
from dpwa.bench.plan import Seat
from dpwa.bench.plane import PlaneSpec, run_plane
from dpwa.errors import DpwaError, UserError

INTERFACE = "dpwa0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
CLONE_NEWNET = 0x4000_0000  # linux/sched.h
LINKS = ("tcp", *(codec for codec in CODECS if codec != "fp16"))  # bf16 has its size


def main() -> None:
    """Join two namespaces and measure, or be a process in one of them."""
    options = _options()
    if is_node():
        _work(options.namespaces)
        return
    try:
        _require_root()
        with _thin_link(options.mbit) as namespaces:
            _compare(options, namespaces)
    except DpwaError as error:
        fail(error)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=5.0)
    parser.add_argument("--mbit", type=int, default=100, help="the limit, in 10^6 bits per second")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--namespaces", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(namespaces: list[str]) -> None:
    """Move to this process's namespace, before any thread is started, and take part."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path("/run/netns", namespaces[Seat.from_environment().rank])
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    from dpwa.bench.worker import main as take_part

    take_part()


def _require_root() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise UserError(f"this needs {' and '.join(missing)} (package iproute2)")
    if os.geteuid() != 0:
        raise UserError("only root may make network namespaces")


@contextmanager
def _thin_link(mbit: int) -> Iterator[list[str]]:
    """Join two new namespaces by a link of so many Mbit/s in each direction; yield their names."""
    names = [f"dpwa-{os.getpid()}-{end}" for end in "ab"]
    try:
        for name in names:
            _do(f"ip netns add {name}")
        ends = [f"{INTERFACE} netns {name}" for name in names]
        _do(f"ip link add {ends[0]} type veth peer name {ends[1]}")
        for name, address in zip(names, ADDRESSES, strict=True):
            _do(f"ip -n {name} addr add {address}/24 dev {INTERFACE}")
            _do(f"ip -n {name} link set lo up")
            _do(f"ip -n {name} link set {INTERFACE} up")
            limit = f"tbf rate {mbit}mbit burst 128kb latency 50ms"
            _do(f"tc -n {name} qdisc add dev {INTERFACE} root {limit}")
        yield names
    finally:
        for name in names:  # the link goes with them
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command}: {done.stderr.strip()}")


def _compare(options: argparse.Namespace, namespaces: list[str]) -> None:
    spec = PlaneSpec(
        options.size_mb,
        options.repetitions,
        measures=tuple(f"{link}_one_way" for link in LINKS),
        hosts=ADDRESSES,
    )
    command = [sys.executable, __file__, "--namespaces", *namespaces]
    result = run_plane(spec, command=command)
    medians_ms = {link: result.figures[f"{link}_one_way"].median_ms for link in LINKS}
    rows = [
        ["none" if link == "tcp" else link, time_ms, f"{time_ms / medians_ms['tcp']:.3f}"]
        for link, time_ms in medians_ms.items()
    ]
    print_table(["codec", "ms per round", "ratio to none"], rows)
    print(result.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
