"""The folder that a report is written into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpwa.errors import UserError


@contextmanager
def folder_to_write(folder: Path) -> Iterator[None]:
    """Make a folder if it is not there; whatever cannot be written into it is one clear error.

    Raises:
        UserError: it cannot be made, or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(
            f"--output: expected a folder that can be written to (got {folder}: {error.strerror})"
        ) from None
