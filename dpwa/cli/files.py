"""Files that commands write for people, who may have changed those of before."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from dpwa.errors import UserError


def require_new(output: Path, *, force: bool) -> None:
    """Refuse to overwrite a file without `force`; before the work whose result it is to have."""
    if not force and os.path.lexists(output):
        raise UserError(f"{output}: exists already; --force overwrites it [DPWA-E023]")


def write_new(output: Path, text: str, *, force: bool) -> None:
    """Write a file, and say so; one that exists is overwritten with `force` only."""
    require_new(output, force=force)
    try:
        # "x" leaves no moment between looking for the file and creating it.
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror}) [DPWA-E024]") from None
    typer.echo(f"{output}: written", err=True)
