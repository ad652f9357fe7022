"""The data plane: parameters as bytes, their layouts, and the leased snapshots of nodes."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("SharedSampler", "shard"):  # earlier versions had them here, not in `dpwa.dataset`
        return getattr(importlib.import_module("dpwa.dataset"), name)
    raise AttributeError(f"module 'dpwa.data' has no attribute {name!r}")
