"""What the benchmarks share: a script starts itself again as the processes that it measures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dpwa.bench.plan import BenchPlan
from dpwa.bench.processes import BenchmarkError, run_processes
from dpwa.errors import DpwaError, UserError

ROOT = Path(__file__).resolve().parent.parent
TRANSPORTS = ("auto", "shm", "tcp")


def is_node() -> bool:
    """Tell whether this process is one of those that a script has started."""
    return "DPWA_RANK" in os.environ


def run_again(plan: BenchPlan) -> list[str]:
    """Run this script, with the same arguments, once for each host of the plan.

    Returns:
        The last line that each process has written to standard output, by rank.

    Raises:
        BenchmarkError: a process failed; the others have been stopped.
        KeyboardInterrupt: the user interrupted; all have been stopped.
    """
    lines = [""] * len(plan.hosts)
    run_processes([sys.executable, *sys.argv], plan, lines.__setitem__)
    return lines


def run(
    compare: Callable[[argparse.Namespace], None],
    take_part: Callable[[argparse.Namespace], None],
    options: argparse.Namespace,
) -> None:
    """Start the processes and compare what they find, or be one of them."""
    try:
        (take_part if is_node() else compare)(options)
    except DpwaError as error:
        fail(error)


def fail(error: Exception) -> NoReturn:
    """End the script: 2 for the user's mistakes, 1 for a benchmark that failed."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {error}\n")
    sys.exit(2 if isinstance(error, UserError) else 1)


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers that are separated by commas, for argparse."""
    return tuple(float(number) for number in text.split(","))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard error; the first column is text, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(stderr=True, highlight=False).print(table)


__all__ = [
    "ROOT",
    "TRANSPORTS",
    "BenchmarkError",
    "fail",
    "is_node",
    "numbers",
    "print_table",
    "run",
    "run_again",
]
