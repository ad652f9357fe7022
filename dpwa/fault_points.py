"""Named moments at which tests may kill or stop a process: fault injection without sleeps.

Source of the idea: torchft, which injects faults at chosen ranks and steps.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Say that a moment has come; does nothing unless a hook is installed."""
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Have a function called at every fault point, with its name; `None` takes it away."""
    global _hook
    _hook = hook
