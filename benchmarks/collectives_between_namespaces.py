"""Collectives streamed through a link between two network namespaces, beside those of Gloo.

Half of the processes are in each namespace. Linux only, as root; needs `ip` and `tc`. Everything it
has made is removed at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from common import fail, is_node, numbers, print_table
from namespaces import run_between, take_part

from dpwa.bench.collectives import CollectivesResult, CollectivesSpec
from dpwa.bench.suites.collectives import GLOO, MEASURES
from dpwa.errors import DpwaError
from dpwa.testing.namespaces import Host, Namespaces

COMPARED = tuple(name for name in MEASURES if name.startswith(("tcp", GLOO)))


def main() -> None:
    """Join two namespaces and measure, or be a process in one of them."""
    options = _options()
    if is_node():
        take_part(options.namespaces)
        return
    try:
        with Namespaces(2) as hosts:
            results = [
                run_between(hosts, _spec(options, size_mb, count, hosts))
                for count in options.processes
                for size_mb in options.sizes_mb
            ]
    except DpwaError as error:
        fail(error)
    _show(results)
    print(json.dumps([result.model_dump() for result in results], indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-mb", type=numbers, default=(25.0, 100.0), metavar="MB,MB,...")
    parser.add_argument("--processes", nargs="+", type=int, choices=(2, 4, 6, 8), default=(2, 4))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--namespaces", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def _spec(
    options: argparse.Namespace, size_mb: float, processes: int, hosts: Sequence[Host]
) -> CollectivesSpec:
    addresses = tuple(host.address for host in hosts for _ in range(processes // 2))
    return CollectivesSpec(size_mb, options.repetitions, COMPARED, addresses)


def _show(results: list[CollectivesResult]) -> None:
    headings = [f"{result.size_mb:g} MB, {result.processes}" for result in results]
    rows = [
        [name.partition(" / ")[0].removeprefix(f"{GLOO}_"), *(of.ratios[name] for of in results)]
        for name in results[0].ratios
    ]
    print_table(["time of Gloo / time of dpwa", *headings], rows)


if __name__ == "__main__":
    main()
