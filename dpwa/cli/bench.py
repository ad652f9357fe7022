"""`dpwa bench`: measure the data plane on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from dpwa.cli import exit_codes

app = typer.Typer(
    help="Measure how fast models are exchanged on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MOST_PROCESSES = 64
LARGEST_SIZE_MB = 100_000


@app.callback()
def describe() -> None:
    """Measure how fast models are exchanged on this machine."""


@app.command()
def plane(
    size_mb: Annotated[
        float, typer.Option(min=0.01, max=LARGEST_SIZE_MB, help="Size of the model, in 10^6 bytes.")
    ] = 100.0,
    processes: Annotated[
        int, typer.Option(min=2, max=MOST_PROCESSES, help="How many processes gossip.")
    ] = 2,
    repetitions: Annotated[
        int, typer.Option(min=1, help="How often each measure is recorded, interleaved.")
    ] = 9,
    tensors: Annotated[
        int, typer.Option(min=1, help="How many tensors the model is divided into.")
    ] = 1,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Measure only these, separated by commas.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON on standard output.")
    ] = False,
) -> None:
    """Time publishing, fetching and merging, beside plain copies, plain TCP and Gloo.

    Every repetition runs every measure once, so that ratios hold on a machine whose speed changes.
    Let nothing else run meanwhile.
    """
    from rich.console import Console

    from dpwa.bench.catalogue import MEASURES
    from dpwa.bench.plan import LOCAL_HOST
    from dpwa.bench.plane import PlaneSpec, run_plane
    from dpwa.bench.processes import BenchmarkError
    from dpwa.bench.report import show_report

    measures = tuple(name.strip() for name in only.split(",")) if only else tuple(MEASURES)
    hosts = (LOCAL_HOST,) * processes
    spec = PlaneSpec(size_mb, repetitions, tensors, measures, hosts)
    with Console(stderr=True).status("Starting the processes") as status:
        try:
            result = run_plane(
                spec, lambda done: status.update(f"Repetition {done} of {repetitions} done")
            )
        except BenchmarkError as error:
            typer.echo(f"dpwa: {error}", err=True)
            raise typer.Exit(exit_codes.FAILURE) from None
    show_report(result)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
