"""`dpwa demo` compares gossip training with training alone, on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.query_options import JsonOption

if TYPE_CHECKING:
    from dpwa.demo.report import DemoResult

LARGEST_SEED = 2**32 - 1


def demo(
    nodes: Annotated[int, typer.Option(metavar="N", min=2, max=64, help="Number of nodes.")] = 4,
    out_dir: Annotated[
        Path, typer.Option(help="The folder for the plot, the results and the run logs.")
    ] = Path("demo-output"),
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of training steps of each node.")
    ] = 600,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of the shards, weights and batches."),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train nodes, each on images of a few digits only. By gossip, each node learns all ten digits.

    The nodes run on this machine. Each node first trains alone, and then again with gossip. At the
    end, the command compares the two results.

    Examples:
        dpwa demo
        dpwa demo --nodes 8 --steps 300 --out-dir /tmp/demo
    """
    from dpwa.demo.run import run_demo

    result, failed = run_demo(nodes, steps, seed, out_dir)
    if result is not None:
        _show(result, out_dir, is_result=not as_json)
    if result is not None and as_json:
        typer.echo(result.model_dump_json(indent=2))
    if failed:
        told = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
        typer.echo(f"These nodes failed: {told}.", err=True)
    if failed or result is None or not result.gossip_won():
        raise typer.Exit(1)


def _show(result: DemoResult, out_dir: Path, *, is_result: bool) -> None:
    """Print the table of nodes, the result and the next steps. With --json, use standard error."""
    console = screen.console(is_result=is_result)
    means = (f"{result.mean_accuracy:.3f}", f"{result.mean_alone_accuracy:.3f}")
    rows = [
        (n.name, str(n.steps), str(n.merges), f"{n.accuracy:.3f}", f"{n.alone_accuracy:.3f}")
        for n in result.nodes
    ]
    headings = ("node", "steps", "merges", "with gossip", "alone")
    console.print("Test accuracy of each node")
    rows.append(("mean", "", "", *means))
    console.print(screen.table(headings, rows, console.width, right=range(1, 5)))
    won = "won" if result.gossip_won() else "did not win"
    console.print(
        f"Gossip {won}: mean test accuracy {means[0]} with gossip, {means[1]} alone.",
        style="bold green" if result.gossip_won() else "bold red",
    )
    if result.consensus_distance is not None:
        distance = f"{result.consensus_distance:.2g}"
        console.print(
            f"At the end, the nodes averaged their models. Consensus distance: {distance}."
        )
    for title, text in (
        ("Plot", out_dir / "demo.png"),
        ("Results", out_dir / "result.json"),
        ("Next", f"dpwa report {shlex.quote(str(out_dir))}"),
        ("", "dpwa launch -n 4 -- python train.py, a program of your own (README.md)"),
    ):
        console.print(f"{title:<8} {text}", markup=False, soft_wrap=True)
