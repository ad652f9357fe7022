"""`dpwa bench`: measure the data plane, collectives and tables on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpwa.cli import exit_codes, screen
from dpwa.cli.bench_link import link
from dpwa.cli.help import HelpGroup
from dpwa.cli.plan import require_torch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpwa.bench.benchmark import Benchmark
    from dpwa.bench.result import BenchResult, Figure

app = typer.Typer(
    help="""Measure how fast nodes exchange what they have.

    Examples:
        dpwa bench plane --size-mb 25
        dpwa bench link 10.0.0.2
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    cls=HelpGroup,
)

MOST_PROCESSES = 64
LARGEST_SIZE_MB = 100_000
MOST_ROWS = 1_000_000_000
MOST_COLUMNS = 100_000

Processes = Annotated[
    int, typer.Option(min=2, max=MOST_PROCESSES, help="How many processes take part.")
]
Repetitions = Annotated[
    int, typer.Option(min=1, help="How often each measure is recorded, interleaved.")
]
Only = Annotated[
    str, typer.Option(metavar="NAMES", help="Measure only these, separated by commas.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output.")
]


@app.command()
def plane(
    size_mb: Annotated[
        float, typer.Option(min=0.01, max=LARGEST_SIZE_MB, help="Size of the model, in 10^6 bytes.")
    ] = 100.0,
    processes: Processes = 2,
    repetitions: Repetitions = 9,
    tensors: Annotated[
        int, typer.Option(min=1, help="How many tensors the model is divided into.")
    ] = 1,
    only: Only = "",
    as_json: AsJson = False,
) -> None:
    """Time publishing, fetching and merging, beside plain copies, plain TCP and Gloo.

    Every repetition runs every measure once, so that ratios hold on a machine whose speed changes.
    Let nothing else run meanwhile.

    Examples:
        dpwa bench plane
        dpwa bench plane --size-mb 25 --processes 4 --json > plane.json
    """
    from dpwa.bench.plan import LOCAL_HOST
    from dpwa.bench.plane import PlaneSpec

    measures = _wanted(only) or tuple(PlaneSpec.suite.measures)
    hosts = (LOCAL_HOST,) * processes
    _run(PlaneSpec(size_mb, repetitions, tensors, measures, hosts), repetitions, as_json=as_json)


@app.command()
def collectives(
    size_mb: Annotated[
        float, typer.Option(min=0.01, max=LARGEST_SIZE_MB, help="Size of the value, in 10^6 bytes.")
    ] = 100.0,
    processes: Processes = 2,
    repetitions: Repetitions = 9,
    only: Only = "",
    as_json: AsJson = False,
) -> None:
    """Time all_reduce, broadcast, all_gather and barriers, beside those of Gloo.

    Every repetition runs every measure once, so that ratios hold on a machine whose speed changes.
    Let nothing else run meanwhile.

    Examples:
        dpwa bench collectives --size-mb 25 --processes 4
    """
    from dpwa.bench.collectives import CollectivesSpec
    from dpwa.bench.plan import LOCAL_HOST

    measures = _wanted(only) or tuple(CollectivesSpec.suite.measures)
    hosts = (LOCAL_HOST,) * processes
    _run(CollectivesSpec(size_mb, repetitions, measures, hosts), repetitions, as_json=as_json)


@app.command()
def tables(
    rows: Annotated[
        int, typer.Option(min=100, max=MOST_ROWS, help="How many rows the table has.")
    ] = 1_000_000,
    columns: Annotated[
        int, typer.Option(min=1, max=MOST_COLUMNS, help="How many float32 values a row has.")
    ] = 64,
    processes: Processes = 4,
    repetitions: Repetitions = 9,
    only: Only = "",
    as_json: AsJson = False,
) -> None:
    """Time reading a table that is shared by all and adding to it, beside collectives of Gloo.

    Every repetition runs every measure once, so that ratios hold on a machine whose speed changes.
    Let nothing else run meanwhile.

    Examples:
        dpwa bench tables --rows 100000 --columns 64
    """
    from dpwa.bench.plan import LOCAL_HOST
    from dpwa.bench.tables import TablesSpec

    measures = _wanted(only) or tuple(TablesSpec.suite.measures)
    hosts = (LOCAL_HOST,) * processes
    _run(TablesSpec(rows, columns, repetitions, measures, hosts), repetitions, as_json=as_json)


app.command()(link)


def _wanted(only: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in only.split(",")) if only else ()


def _run(benchmark: Benchmark[Any], repetitions: int, *, as_json: bool) -> None:
    from rich.console import Console

    require_torch("dpwa bench")
    from dpwa.bench.benchmark import run_benchmark
    from dpwa.bench.processes import BenchmarkError

    with Console(stderr=True).status("Starting the processes") as status:
        try:
            result = run_benchmark(
                benchmark, lambda done: status.update(f"Repetition {done} of {repetitions} done")
            )
        except BenchmarkError as error:
            typer.echo(f"dpwa: {error}", err=True)
            raise typer.Exit(exit_codes.FAILURE) from None
    _show(result, benchmark.suite.titles, is_result=not as_json)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))


def _show(result: BenchResult, titles: Mapping[str, str], *, is_result: bool = True) -> None:
    """Print the figures, and what was worked out of them; beside JSON, to standard error."""
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
