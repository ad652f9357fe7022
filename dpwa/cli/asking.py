"""Options of the commands that ask nodes how they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpwa.cli.completion import node_names

MAX_TIMEOUT_MS = 3_600_000

RunOption = Annotated[
    Path,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        envvar="DPWA_CONFIG",
        help="The configuration of the run.",
    ),
]
TimeoutOption = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        max=MAX_TIMEOUT_MS,
        help="How long to wait for the answers, in milliseconds.",
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        autocompletion=node_names,
        help="With `security: curve`, whose secret key to ask with; the first one here.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
