"""The result as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpwa.bench.catalogue import MEASURES
from dpwa.bench.plane import PlaneResult

if TYPE_CHECKING:
    from rich.table import Table

_TITLES = {name: title for figures in MEASURES.values() for name, title in figures.items()}


def show_report(result: PlaneResult) -> None:
    """Print the figures and the ratios on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(_heading(result), soft_wrap=True)
    console.print(_figures(result))
    if result.ratios:
        console.print(_ratios(result))
    for measure, count in result.failed_rounds.items():
        console.print(f"{measure}: {count} rounds merged nothing", soft_wrap=True)


def _heading(result: PlaneResult) -> str:
    tensors = "1 tensor" if result.tensors == 1 else f"{result.tensors} tensors"
    return (
        f"{result.size_mb:g} MB of float32 in {tensors}, {result.processes} processes of one thread"
        f" on {result.machine.cores} cores ({result.machine.cpu}), "
        f"{result.repetitions} interleaved repetitions"
    )


def _figures(result: PlaneResult) -> Table:
    from rich.table import Table

    table = Table("figure", "what", box=None, pad_edge=False)
    for heading in ("median ms", "min", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figure in result.figures.items():
        times = (figure.median_ms, figure.min_ms, figure.max_ms)
        table.add_row(name, _TITLES[name], *(f"{time:.2f}" for time in times))
    return table


def _ratios(result: PlaneResult) -> Table:
    from rich.table import Table

    table = Table("ratio of medians", box=None, pad_edge=False)
    table.add_column("", justify="right")
    for name, value in result.ratios.items():
        table.add_row(name, f"{value:.2f}")
    return table
