"""`dpwa version`: what is installed here."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def _print_short(is_asked: bool) -> None:
    if is_asked:
        import dpwa

        typer.echo(f"dpwa {dpwa.__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_print_short, is_eager=True, help="Show the version."),
]


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the versions of dpwa, Python and PyTorch, and the platform.

    Good to have in every bug report.
    """
    found = _versions()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo("\n".join(f"{name} {number}" for name, number in found.items()))


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    import dpwa

    try:
        torch = metadata.version("torch")  # importing it would take seconds
    except metadata.PackageNotFoundError:
        torch = "not installed"
    return {
        "dpwa": dpwa.__version__,
        "python": platform.python_version(),
        "torch": torch,
        "platform": platform.platform(),
    }
