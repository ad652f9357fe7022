"""What nodes train on: `SharedSampler` and `shard`, loaded on first use, as they need torch.

The modules in here are the data plane: parameters as bytes, their layout, and the leased snapshots
that nodes serve.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpwa.sampling.shards import shard
    from dpwa.sampling.shared_sampler import SharedSampler

_HOMES = {"SharedSampler": "dpwa.sampling.shared_sampler", "shard": "dpwa.sampling.shards"}

__all__ = ["SharedSampler", "shard"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpwa.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
