"""Measure the time of a round by codec, over a slow link between two network namespaces.

The script needs Linux, root, `ip` and `tc`. At the end, it removes the namespaces and the link.
"""

from __future__ import annotations

import argparse
import json

from common import print_table, result_of, run
from namespaces import placed
from plane import CODECS, RATIOS, plane_plan, take_part

from dpwa.testing.namespaces import Namespaces

LINKS = ("tcp", *(codec for codec in CODECS if codec != "fp16"))  # fp16 has the size of bf16


def main() -> None:
    run(_compare, take_part, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=float, default=5.0)
    parser.add_argument("--mbit", type=int, default=100, help="rate in 10^6 bits per second")
    parser.add_argument("--repetitions", type=int, default=9)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    measures = tuple(f"{link}_one_way" for link in LINKS)
    with Namespaces(2, rate_mbit=options.mbit) as hosts:
        addresses = tuple(host.address for host in hosts)
        plan = plane_plan(options.size_mb, measures, options.repetitions, addresses)
        found = result_of(placed(plan, hosts), RATIOS)
    medians_ms = {link: found["figures"][f"{link}_one_way"]["median_ms"] for link in LINKS}
    rows = [
        ["none" if link == "tcp" else link, time_ms, f"{time_ms / medians_ms['tcp']:.3f}"]
        for link, time_ms in medians_ms.items()
    ]
    print_table(["codec", "ms per round", "ratio to none"], rows)
    print(json.dumps({"size_mb": options.size_mb, **found}, indent=2))


if __name__ == "__main__":
    main()
