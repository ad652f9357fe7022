"""Measure the time of a round by model size, for dpwa on one host, dpwa with streams, and Gloo.

The script writes a chart (PNG, with logarithmic axes), and a JSON file with the same name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, numbers, print_table, result_of, run
from plane import RATIOS, plane_plan, take_part

SIZES_MB = (1.0, 4.0, 16.0, 64.0, 100.0, 250.0, 1000.0)
CURVES = {
    "shm_round": ("dpwa, same host", "#0072B2", "o"),
    "tcp_round": ("dpwa, streaming", "#009E73", "s"),
    "gloo_pair": ("Gloo, pair exchange + lerp_", "#E69F00", "^"),
    "gloo_all_reduce": ("Gloo, all_reduce + divide", "#D55E00", "v"),
}


def main() -> None:
    run(_compare, take_part, _options())


def _compare(options: argparse.Namespace) -> None:
    results = [_measured(size_mb, options.repetitions) for size_mb in options.sizes_mb]
    figures = options.chart.with_suffix(".json")
    figures.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    _draw(results, options.chart)
    print_table(
        ["MB", *CURVES],
        [
            [f"{each['size_mb']:g}", *(each["figures"][name]["median_ms"] for name in CURVES)]
            for each in results
        ],
    )
    print(f"{options.chart}\n{figures}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-mb", type=numbers, default=SIZES_MB, metavar="MB,MB,...")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument(
        "--chart", type=Path, default=ROOT / "docs" / "images" / "round-time.png", metavar="PNG"
    )
    return parser.parse_args()


def _measured(size_mb: float, repetitions: int) -> dict[str, Any]:
    plan = plane_plan(size_mb, tuple(CURVES), repetitions)
    return {"size_mb": size_mb, "tensors": 1, **result_of(plan, RATIOS)}


def _draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes_mb = [result["size_mb"] for result in results]
    for name, (label, colour, marker) in CURVES.items():
        medians_ms = [result["figures"][name]["median_ms"] for result in results]
        axes.loglog(sizes_mb, medians_ms, color=colour, marker=marker, label=label)
    axes.set_xlabel("size of the model, MB of float32")
    axes.set_ylabel("time per round, ms (median)")
    axes.set_title("Two processes on one machine, one thread each, both at once", loc="left")
    axes.grid(visible=True, which="both", linewidth=0.4, alpha=0.5)
    axes.legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
