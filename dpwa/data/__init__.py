"""The data plane: parameters as bytes, their layout, and the leased snapshots of nodes."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("SharedSampler", "shard"):  # of `dpwa.dataset`, by their first names
        return getattr(importlib.import_module("dpwa.dataset"), name)
    raise AttributeError(f"module 'dpwa.data' has no attribute {name!r}")
