"""The life of things that hold threads, sockets or files: open until closed, once."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closeable")


class Closeable:
    """Something to be closed when done with; a context manager that does so."""

    def close(self) -> None:
        """Give back what is held; may be called again without effect."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
