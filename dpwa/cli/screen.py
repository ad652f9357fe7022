"""The output of all commands. Tables fit the terminal, and files are not overwritten.

If a terminal is too narrow for a table, each row is printed as several lines, so that no word is
broken. If standard output is not a terminal, each row is one line of any length, for `grep`, `cut`
and `less`. An existing file is overwritten only with --force, because a user may have edited it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpwa.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ANY_WIDTH = 4000  # columns of a file or a pipe, which have no width of their own
MIN_TEXT_COLUMNS = 20  # minimum for a cell of several words
GAP = 1  # columns between two cells


def console(*, is_result: bool = True) -> Console:
    """Return a console on standard output for results, or on standard error for other text."""
    from rich.console import Console

    found = Console(stderr=not is_result, highlight=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = ANY_WIDTH
    return found


def is_watched() -> bool:
    """Return whether standard output is a terminal that can overwrite lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def age(seconds: float) -> str:
    """Return a number of seconds as text in a suitable unit, such as `5 min`."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int,
    *,
    right: Sequence[int] = (),
    text: Sequence[int] = (),
) -> RenderableType:
    """Return a table, or each row as several lines if the table is wider than `columns`.

    `right` has the indices of right-aligned columns, such as numbers. `text` has the indices of
    columns that may be wrapped between words. Cells are shown literally, without markup.
    """
    from rich.cells import cell_len
    from rich.table import Table

    needed = -GAP
    for index, heading in enumerate(headings):
        widest = max(map(cell_len, (heading, *(row[index] for row in rows))))
        needed += GAP + (min(widest, MIN_TEXT_COLUMNS) if index in text else widest)
    if needed > columns:
        return _records(headings, rows, text)
    made = Table(box=None, pad_edge=False, collapse_padding=True, show_header=any(headings))
    for index, heading in enumerate(headings):
        made.add_column(
            heading,
            justify="right" if index in right else "left",
            no_wrap=index not in text,
        )
    for row in rows:
        made.add_row(*map(plain, row))
    return made


def plain(text: str) -> RenderableType:
    """Return a text that rich shows without markup, and wraps between words."""
    from rich.text import Text

    return Text(text, overflow="fold")


def _records(
    headings: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int]
) -> RenderableType:
    """Return each row as several lines. The other cells of a row are below its name."""
    from rich.console import Group
    from rich.padding import Padding

    parts: list[RenderableType] = []
    if len(headings) == 2:  # the only other column needs no heading
        headings = (headings[0], "")
    for name, *others in rows:
        cells = list(enumerate(zip(headings[1:], others, strict=True), 1))
        short = [f"{head} {cell}".strip() for index, (head, cell) in cells if index not in text]
        long = [
            f"{head}: {cell}" if head else cell for index, (head, cell) in cells if index in text
        ]
        lines = [", ".join(short), *long]
        parts.append(plain(name))
        parts += [Padding(plain(line), (0, 0, 0, 2), expand=False) for line in lines if line]
    return Group(*parts)


def open_browser(address: str) -> None:
    """Open a page in the browser, or print its address if there is no browser."""
    import webbrowser

    if not webbrowser.open(address):
        typer.echo(f"dpwa: found no browser. Open {address} in a browser", err=True)


def require_new(output: Path, *, force: bool) -> None:
    """Raise an error if a file exists, unless `force` is true. Call this before long work."""
    if not force and os.path.lexists(output):
        raise UserError(
            f"{output}: the file already exists. Use --force to overwrite it [DPWA-E023]"
        )


def write_new(output: Path, text: str, *, force: bool) -> None:
    """Write a file, and print its path. An existing file is overwritten only with `force`.

    The file `-` stands for standard output.
    """
    if output == Path("-"):
        typer.echo(text, nl=False)
        return
    require_new(output, force=force)
    try:
        # With "x", no other process can create the file between the check and the write.
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(
            f"{output}: the file cannot be written ({error.strerror}) [DPWA-E024]"
        ) from None
    typer.echo(f"{output}: written", err=True)
