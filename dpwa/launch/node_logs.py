"""What each node prints, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from dpwa.errors import UserError
from dpwa.lifecycle import Closeable


class NodeLogs(Closeable):
    """Appends lines to DIR/NAME.log; a line is in the file when `write` returns.

    A file that cannot be written any more, as on a full disk, stops no node: it is told of once,
    and left alone.

    Args:
        folder: is made if it is not there; `None`: nothing is written anywhere.
        names: of the nodes.
        note: called with what goes wrong later.

    Raises:
        UserError: the folder cannot be made, or a file in it cannot be written.
    """

    def __init__(
        self, folder: Path | None, names: Sequence[str], note: Callable[[str], None]
    ) -> None:
        self._note = note
        self._files: dict[str, TextIO] = {}
        if folder is None:
            return
        path = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                path = folder / f"{name}.log"
                self._files[name] = path.open(
                    "a", encoding="utf-8", errors="backslashreplace", buffering=1
                )
        except OSError as error:
            self.close()
            raise UserError(f"cannot write {path}: {error.strerror} (--log-dir)") from None

    def write(self, node: str, line: str) -> None:
        """Append a line to the file of a node."""
        file = self._files.get(node)
        if file is None:
            return
        try:
            file.write(line + "\n")
        except OSError as error:
            del self._files[node]
            _close(file)
            self._note(f"{file.name} is not written any more: {error.strerror}")

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            _close(file)
        self._files.clear()


def _close(file: TextIO) -> None:
    with suppress(OSError):  # what is left to be written is what could not be written
        file.close()
