"""Compare collectives of dpwa and of Gloo over a link between two network namespaces.

Half of the processes run in each namespace. The script needs Linux, root, `ip` and `tc`. At the
end, it removes the namespaces and the link.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from collectives import GLOO, RATIOS, TITLES, collectives_plan, take_part
from common import numbers, print_table, result_of, run
from namespaces import placed

from dpwa.testing.namespaces import Host, Namespaces

COMPARED = tuple(name for name in TITLES if name.startswith(("tcp", GLOO)))


def main() -> None:
    run(_compare, take_part, _options())


def _compare(options: argparse.Namespace) -> None:
    with Namespaces(2) as hosts:
        results = [
            _measured(options.repetitions, size_mb, count, hosts)
            for count in options.processes
            for size_mb in options.sizes_mb
        ]
    _show(results)
    print(json.dumps(results, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-mb", type=numbers, default=(25.0, 100.0), metavar="MB,MB,...")
    parser.add_argument("--processes", nargs="+", type=int, choices=(2, 4, 6, 8), default=(2, 4))
    parser.add_argument("--repetitions", type=int, default=9)
    return parser.parse_args()


def _measured(
    repetitions: int, size_mb: float, processes: int, hosts: Sequence[Host]
) -> dict[str, Any]:
    addresses = tuple(host.address for host in hosts for _ in range(processes // 2))
    plan = collectives_plan(size_mb, COMPARED, repetitions, addresses)
    return {"size_mb": size_mb, **result_of(placed(plan, hosts), RATIOS)}


def _show(results: list[dict[str, Any]]) -> None:
    headings = [f"{result['size_mb']:g} MB, {result['processes']}" for result in results]
    rows = [
        [name.partition(" / ")[0].removeprefix(f"{GLOO}_"), *(of["ratios"][name] for of in results)]
        for name in results[0]["ratios"]
    ]
    print_table(["time of Gloo / time of dpwa", *headings], rows)


if __name__ == "__main__":
    main()
