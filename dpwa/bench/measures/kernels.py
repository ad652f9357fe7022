"""What no round can be faster than: reading and writing the model once, by one thread."""

from __future__ import annotations

import torch

from dpwa.bench.measures.timed import Work
from dpwa.bench.model import MERGE_FACTOR


def copy_(source: torch.Tensor, scratch: torch.Tensor) -> Work:
    """Return `scratch = source`, both of shape `(n,)`."""
    return lambda: scratch.copy_(source)


def lerp_(source: torch.Tensor, scratch: torch.Tensor) -> Work:
    """Return `scratch += f * (source - scratch)`, both of shape `(n,)`."""
    return lambda: scratch.lerp_(source, MERGE_FACTOR)
