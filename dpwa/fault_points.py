"""Named points in the code at which a test can stop a process. Tests of torchft do the same."""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Call a function with the name of each point that is reached. `None` removes the function."""
    global _hook
    _hook = hook
