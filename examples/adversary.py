"""Let one of eight nodes serve wrong values. Compare the others with and without `robust: clip`.

Run: python examples/adversary.py
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from comparison.options import counter
from comparison.variants import Variant

from dpwa.errors import DpwaError, UserError

if TYPE_CHECKING:
    from comparison.runs import Trajectory

NODES = 8
DELTA = {"merge": "delta"}
CASES = (
    ("correct values", None, Variant("none", "none", DELTA)),
    ("correct values", None, Variant("clip", "clip", DELTA | {"robust": "clip"})),
    ("±1e6", "huge", Variant("none", "none", DELTA)),
    ("±1e6", "huge", Variant("clip", "clip", DELTA | {"robust": "clip"})),
    ("NaN, guard: off", "nan", Variant("none", "none", DELTA | {"guard": "off"})),
    ("NaN, guard: off", "nan", Variant("clip", "clip", DELTA | {"guard": "off", "robust": "clip"})),
    ("NaN", "nan", Variant("none", "none", DELTA)),
)


def main() -> int:
    """Return the exit code: 0, 1 if a node failed, 2 for the user's mistakes, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--steps", type=counter(1, 100_000), default=200, help="steps of each node (%(default)s)"
    )
    parser.add_argument("--seed", type=counter(0, 2**31), default=0, help="(%(default)s)")
    options = parser.parse_args()
    # The import of torch may swallow a KeyboardInterrupt. No file is open yet, so exit at once.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        show(run_cases(options.steps, options.seed))
    except KeyboardInterrupt:
        print("Interrupted: all nodes have been stopped.", file=sys.stderr)
        return 130
    except DpwaError as error:
        print(f"adversary.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


def run_cases(steps: int, seed: int) -> list[tuple[float, float]]:
    """Return the mean and the lowest final accuracy of the honest nodes in each case."""
    from comparison.node import Plan
    from comparison.outcome import Jury
    from comparison.runs import Run, run_all

    signal.signal(signal.SIGINT, signal.default_int_handler)
    runs = [
        Run(variant, Plan(nodes=NODES, steps=steps, seed=seed, attack=attack))
        for _, attack, variant in CASES
    ]
    labels = {
        id(run): f"{served}, robust: {run.variant.label}"
        for (served, _, _), run in zip(CASES, runs, strict=True)
    }
    jury = Jury()

    def final(trajectories: Sequence[Trajectory]) -> tuple[float, float]:
        honest = [jury.accuracy(trajectory.vectors[-1]) for trajectory in trajectories[:-1]]
        return fmean(honest), min(honest)

    found = run_all(runs, lambda run: print(labels[id(run)], file=sys.stderr))
    return [final(trajectories) for trajectories in found]


def show(accuracies: Sequence[tuple[float, float]]) -> None:
    """Print the accuracies of all cases as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"Accuracy of the first {NODES - 1} of {NODES} nodes", pad_edge=False, box=None
    )
    for heading in ("the last node serves", "robust"):
        table.add_column(heading, no_wrap=True)
    for heading in ("mean", "worst", "change of mean"):
        table.add_column(heading, justify="right")
    for (served, _, variant), (mean, worst) in zip(CASES, accuracies, strict=True):
        change = f"{mean - accuracies[0][0]:+.3f}"
        table.add_row(served, variant.label, f"{mean:.3f}", f"{worst:.3f}", change)
    Console(highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
