"""`dpwa bench`: measure what a run between machines has to go through."""

from __future__ import annotations

import typer

from dpwa.cli.bench_link import link
from dpwa.cli.help import HelpGroup

app = typer.Typer(
    help="""Measure the way between two machines.

    Examples:
        dpwa bench link --serve
        dpwa bench link 10.0.0.2
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    cls=HelpGroup,
)
app.command()(link)
