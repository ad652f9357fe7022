"""Records the figures and events of nodes, and reads them from living nodes or from run logs.

`RunFrames` and `load` are imported on first use, so that `import dpwa.observe` imports neither
pandas nor matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.observe.frames import RunFrames, load

__all__ = ["RunFrames", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dpwa.observe' has no attribute {name!r}")
    from dpwa.observe import frames

    return getattr(frames, name)
