"""`dpwa demo`: see gossip training work, in half a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpwa.cli.asking import JsonOption

LARGEST_SEED = 2**32 - 1


def demo(
    nodes: Annotated[
        int, typer.Option(metavar="N", min=2, max=64, help="How many nodes learn together.")
    ] = 4,
    out_dir: Annotated[
        Path, typer.Option(help="Folder for curves, figures, logs and weights.")
    ] = Path("demo-output"),
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Training steps of each node.")
    ] = 600,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Decides shards, weights and batches.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Let local processes, each with its own few digits, learn all ten from each other.

    Every node first trains alone and then again with gossip; at the end both are compared.

    Examples:
        dpwa demo
        dpwa demo --nodes 8 --steps 300 --out-dir /tmp/demo
    """
    from dpwa.demo.run import run_demo

    code = run_demo(nodes, steps, seed, out_dir, as_json=as_json)
    if code:
        raise typer.Exit(code)
