"""The result as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpwa.bench.result import Figure, Result

if TYPE_CHECKING:
    from rich.table import Table


def show_report(result: Result, titles: Mapping[str, str]) -> None:
    """Print the figures, and what was worked out of them, on standard error.

    Args:
        result: of any benchmark.
        titles: what each figure is.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(_heading(result), soft_wrap=True)
    console.print(_figures(result.figures, titles))
    for what, numbers in result.numbers().items():
        if numbers:
            console.print(_numbers(what, numbers))
    for measure, count in result.failed_rounds.items():
        console.print(f"{measure}: {count} rounds merged nothing", soft_wrap=True)


def _heading(result: Result) -> str:
    return (
        f"{result.heading()}, {result.processes} processes of one thread"
        f" on {result.machine.cores} cores ({result.machine.cpu}), "
        f"{result.repetitions} interleaved repetitions"
    )


def _figures(figures: Mapping[str, Figure], titles: Mapping[str, str]) -> Table:
    from rich.table import Table

    table = Table("figure", "what", box=None, pad_edge=False)
    for heading in ("median ms", "min", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figure in figures.items():
        times_ms = (figure.median_ms, figure.min_ms, figure.max_ms)
        decimals = 2 if figure.median_ms >= 1 else 3
        table.add_row(name, titles[name], *(f"{time_ms:.{decimals}f}" for time_ms in times_ms))
    return table


def _numbers(what: str, numbers: Mapping[str, float]) -> Table:
    from rich.table import Table

    table = Table(what, box=None, pad_edge=False)
    table.add_column("", justify="right")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.2f}")
    return table
