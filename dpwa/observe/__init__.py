"""The events of a run, which each node records, read from any living node, or from run logs.

The names below are loaded on first use, so that `import dpwa.observe` imports neither pandas nor
matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.observe.frames import RunFrames, load

_HOMES = {"RunFrames": "dpwa.observe.frames", "load": "dpwa.observe.frames"}

__all__ = ["RunFrames", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpwa.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
