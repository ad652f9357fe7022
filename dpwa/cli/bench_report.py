"""The result of a benchmark as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpwa.cli import screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpwa.bench.result import BenchResult, Figure


def show_report(result: BenchResult, titles: Mapping[str, str], *, is_result: bool = True) -> None:
    """Print the figures, and what was worked out of them.

    Args:
        result: of any benchmark.
        titles: what each figure is.
        is_result: whether it goes to standard output; else to standard error, beside JSON.
    """
    console = screen.console(is_result=is_result)
    console.print(screen.plain(_heading(result)))
    console.print(_figures(result.figures, titles, console.width))
    for what, numbers in result.numbers().items():
        if numbers:
            rows = [(name, f"{value:.2f}") for name, value in numbers.items()]
            console.print(screen.table((what, ""), rows, console.width, right=[1], text=[0]))
    for measure, count in result.failed_rounds.items():
        console.print(screen.plain(f"{measure}: {count} rounds merged nothing"))


def _heading(result: BenchResult) -> str:
    return (
        f"{result.heading()}, {result.processes} processes of one thread"
        f" on {result.machine.cores} cores ({result.machine.cpu}), "
        f"{result.repetitions} interleaved repetitions"
    )


def _figures(
    figures: Mapping[str, Figure], titles: Mapping[str, str], columns: int
) -> RenderableType:
    headings = ("figure", "what", "median ms", "min", "max")
    rows = []
    for name, figure in figures.items():
        times_ms = (figure.median_ms, figure.min_ms, figure.max_ms)
        decimals = 2 if figure.median_ms >= 1 else 3
        rows.append((name, titles[name], *(f"{time_ms:.{decimals}f}" for time_ms in times_ms)))
    return screen.table(headings, rows, columns, right=[2, 3, 4], text=[1])
