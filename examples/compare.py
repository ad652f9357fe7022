"""Compare all algorithms. With each algorithm, several nodes learn handwritten digits.

Run: python examples/compare.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.options import counter
from comparison.variants import VARIANTS, Variant, variants_named

from dpwa.errors import DpwaError, UserError

if TYPE_CHECKING:
    from comparison.outcome import Outcome

CHART_NAME, FIGURES_NAME = "compare.png", "compare.json"


def main() -> int:
    """Return the exit code: 0, 1 if a node failed, 2 for the user's mistakes, 130 for Ctrl-C."""
    options = parse_arguments()
    try:
        prepare(options)
        outcomes = compare(options)
        show(outcomes, options)
        save(outcomes, options)
    except KeyboardInterrupt:
        print("Interrupted: all nodes have been stopped.", file=sys.stderr)
        return 130
    except (DpwaError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, (UserError, OSError)) else 1
    return 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. A mistake ends the process with exit code 2."""
    names = ",".join(variant.name for variant in VARIANTS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--nodes", type=counter(2, 64), default=4, help="number of processes (%(default)s)")
    add("--steps", type=counter(1, 100_000), default=300, help="steps of each node (%(default)s)")
    add("--seed", type=counter(0, 2**31), default=0, help="the first seed (%(default)s)")
    add("--seeds", type=counter(1, 100), default=1, help="number of seeds (%(default)s)")
    add("--algorithms", type=_variants, default=VARIANTS, help=f"some of {names} (all)")
    add(
        "--transport",
        choices=("tcp", "auto"),
        default="tcp",
        help="tcp: nodes send all parameters. auto: nodes read each other's memory (%(default)s)",
    )
    add(
        "--shards",
        choices=("shared", "private"),
        default="shared",
        help="shared: each node samples all data. private: each node samples a few of the ten "
        "classes, and takes 3 %% of its data from all classes (%(default)s)",
    )
    add("--out-dir", type=Path, default=Path("compare-output"), help="output folder (%(default)s)")
    return parser.parse_args(arguments)


def _variants(text: str) -> tuple[Variant, ...]:
    try:
        return variants_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def prepare(options: argparse.Namespace) -> None:
    """Check the output folder, and then import the modules that take seconds to import."""
    options.out_dir.mkdir(parents=True, exist_ok=True)
    for name in (CHART_NAME, FIGURES_NAME):  # old files would look like the results of this run
        (options.out_dir / name).touch()
        (options.out_dir / name).unlink()
    # The import of torch may swallow a KeyboardInterrupt. No file is open yet, so exit at once.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        import comparison.chart
        import comparison.outcome  # noqa: F401
    except ImportError as missing:
        raise UserError(f'{missing}. Install the packages: pip install ".[demo]"') from None
    signal.signal(signal.SIGINT, signal.default_int_handler)


def compare(options: argparse.Namespace) -> dict[Variant, Outcome]:
    """Do all runs. Return the medians over all seeds for each variant."""
    from comparison.node import Plan
    from comparison.outcome import Jury, over_seeds
    from comparison.runs import Run, run_all

    runs = [
        Run(
            variant,
            Plan(nodes=options.nodes, steps=options.steps, seed=seed, shards=options.shards),
            options.transport,
        )
        for seed in range(options.seed, options.seed + options.seeds)
        for variant in options.algorithms
    ]
    done = 0

    def tell(run: Run) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{len(runs)} {run.variant.label}, seed {run.plan.seed}", file=sys.stderr)

    jury = Jury()
    judged = [
        (run.variant, jury.judge(trajectories))
        for run, trajectories in zip(runs, run_all(runs, tell), strict=True)
    ]
    return {
        variant: over_seeds([outcome for which, outcome in judged if which is variant])
        for variant in options.algorithms
    }


def show(outcomes: dict[Variant, Outcome], options: argparse.Namespace) -> None:
    """Print the outcomes as a table."""
    from comparison.outcome import GOAL
    from rich.console import Console
    from rich.table import Table

    several = f", medians of {options.seeds} seeds" if options.seeds > 1 else ""
    title = f"{options.nodes} nodes, {options.steps} steps, {options.shards} data{several}"
    table = Table(title=title, title_justify="left", pad_edge=False, box=None)
    table.add_column("algorithm", no_wrap=True)
    goal = f"{100 * GOAL:g} %"
    for heading in (f"steps to {goal}", f"seconds to {goal}", "mean", "worst", "mean model", "MB"):
        table.add_column(heading, justify="right")
    for variant, outcome in outcomes.items():
        table.add_row(variant.label, *cells(outcome))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "mean and worst: the mean and the lowest final accuracy of the nodes. mean model: the "
        "accuracy of the mean of all parameters. MB: 10^6 bytes sent by each node. For synchronous "
        "averaging, MB is computed for a ring all-reduce.",
        style="dim",
    )


def cells(outcome: Outcome) -> list[str]:
    """Return the cells of one row of the table."""
    return [
        "never" if math.isinf(outcome.steps_to_goal) else f"{outcome.steps_to_goal:g}",
        f"{outcome.seconds_to_goal:.2f}" if math.isfinite(outcome.seconds_to_goal) else "-",
        *(f"{share:.3f}" for share in (outcome.mean, outcome.worst, outcome.mean_model)),
        f"{outcome.mb_sent:.1f}",
    ]


def save(outcomes: dict[Variant, Outcome], options: argparse.Namespace) -> None:
    """Write the outcomes as a picture and as a JSON file."""
    from comparison.chart import draw_chart

    draw_chart(outcomes, options.nodes, options.out_dir / CHART_NAME, options.shards)
    figures = {variant.name: plain(outcome) for variant, outcome in outcomes.items()}
    text = json.dumps(figures, indent=2) + "\n"
    (options.out_dir / FIGURES_NAME).write_text(text, encoding="utf-8")
    print(f"Picture and figures: {options.out_dir}/{CHART_NAME}, {FIGURES_NAME}")


def plain(outcome: Outcome) -> dict[str, object]:
    """Return an outcome for JSON, with null for infinite values and NaN."""
    arrays = {"steps": outcome.steps.tolist(), "accuracy": outcome.accuracy.tolist()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in (asdict(outcome) | arrays).items()
    }


if __name__ == "__main__":
    sys.exit(main())
