"""Time per round over a thin link, by codec: two network namespaces, and a limit between them.

Linux only, as root; needs `ip` and `tc`. Everything it has made is removed at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import fail, is_node, print_table
from namespaces import run_between, take_part

from dpwa.bench.plane import PlaneSpec
from dpwa.bench.suites.plane import CODECS
from dpwa.errors import DpwaError
from dpwa.testing.namespaces import Host, Namespaces

LINKS = ("tcp", *(codec for codec in CODECS if codec != "fp16"))  # bf16 has its size


def main() -> None:
    """Join two namespaces and measure, or be a process in one of them."""
    options = _options()
    if is_node():
        take_part(options.namespaces)
        return
    try:
        with Namespaces(2, rate_mbit=options.mbit) as hosts:
            _compare(options, hosts)
    except DpwaError as error:
        fail(error)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=5.0)
    parser.add_argument("--mbit", type=int, default=100, help="the limit, in 10^6 bits per second")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--namespaces", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def _compare(options: argparse.Namespace, hosts: Sequence[Host]) -> None:
    spec = PlaneSpec(
        options.size_mb,
        options.repetitions,
        measures=tuple(f"{link}_one_way" for link in LINKS),
        hosts=tuple(host.address for host in hosts),
    )
    result = run_between(hosts, spec)
    medians_ms = {link: result.figures[f"{link}_one_way"].median_ms for link in LINKS}
    rows = [
        ["none" if link == "tcp" else link, time_ms, f"{time_ms / medians_ms['tcp']:.3f}"]
        for link, time_ms in medians_ms.items()
    ]
    print_table(["codec", "ms per round", "ratio to none"], rows)
    print(result.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
