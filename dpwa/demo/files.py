"""The files that the demo leaves in its folder."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpwa.errors import UserError

CHART_NAME, RESULT_NAME = "demo.png", "result.json"
_WRITTEN = re.compile(r"demo\.png|result\.json|dpwa\.yaml|w[1-9][0-9]*\.(jsonl|npz)")


def prepare_folder(folder: Path) -> None:
    """Create the folder, make sure that it can be written, and remove what an earlier run left.

    Old files would look like results of a run that fails or has fewer nodes.

    Raises:
        UserError: the folder or a file of an earlier run cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        leftovers = [path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name)]
    except OSError as error:
        raise UserError(
            f"--out-dir {folder}: expected a folder that can be written ({error.strerror})"
        ) from None
    for path in leftovers:
        _require_replaceable(path)
    for path in leftovers:
        _remove(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file at the end of a run, when the disk may be full.

    Raises:
        UserError: instead of any OSError inside the context.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _require_replaceable(path: Path) -> None:
    if path.is_symlink():
        return  # only the link itself is replaced
    if not path.is_file() or not os.access(path, os.W_OK):
        raise UserError(f"{path}: expected a file that can be replaced, or nothing")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot replace {path}: {error.strerror}") from None
